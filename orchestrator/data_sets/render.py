"""Renders tasks, counts and reports as text. Makes all foreign text harmless. (pure, except Progress)"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from orchestrator.display.wording import TASK_NAMES, count, duration, harmless, percent
from workers.line_contract import Checked, Note, Reading, Said

EVERY_S = 10.0
"""Seconds between two progress lines without a terminal."""
SHOWN = 5
"""Refused lines and conflicts to print; the report file lists more."""


def task_lines(task: Mapping[str, Any]) -> list[str]:
    """One task: kind and origin, its program, and each input with its output."""
    origin = task.get("origin", {})
    words = [TASK_NAMES.get(task["task"], task["task"]), task.get("key", "")[:12] or "no key"]
    if "run" in origin:
        words.append(f"run {origin['run']} step {count(origin.get('step', 0))}")
    if "file" in origin:
        words.append(f"{origin['file']}:{origin.get('line', 0)}")
    words.append(task.get("source", "import"))
    if (rate := task.get("solve_rate", -1.0)) >= 0:
        words.append(f"solved {percent(rate)}")
    lines = [harmless(", ".join(words))]
    lines += [f"    {harmless(line)}" for line in task["program"].splitlines()]
    outputs = task.get("outputs") or ["?"] * len(task["inputs"])
    for given, wanted in zip(task["inputs"], outputs, strict=False):
        lines.append(f"  f({harmless(given)})  ->  {harmless(wanted)}")
    if task.get("message"):
        lines.append(f"  message: {harmless(task['message'])}")
    return lines


PARTS = {"train": "trains", "held_out": "held out, never trains", "left_out": "left out"}


def preview_lines(facts: Mapping[str, Any]) -> list[str]:
    """What was read, its columns and parts, the rows that cannot be used, and the first rows as the model sees them."""
    parts = ", ".join(f"{PARTS[name]} {count(number)}" for name, number in facts["parts"].items())
    lines = [f"data       {facts['summary']}", f"parts      {parts}"]
    if facts["sources"]:
        weights = facts["weights"] or facts["sources"].values()
        shares = [f"{name} {percent(one / sum(weights))}" for name, one in zip(facts["sources"], weights, strict=False)]
        lines.append(f"draws      {', '.join(shares)}")
    lines.append(f"columns    {', '.join(f'{name}: {kind}' for name, kind in facts['columns'].items()) or 'none'}")
    longest = count(facts["max_prompt_tokens"])
    lines.append(f"prompts    style {facts['prompt_style']} for {facts['model']}; at most {longest} tokens")
    for one in facts["left_out"]:
        lines.append(f"  line {one['source']}{':' if one['source'] else ''}{one['line']}: {one['reason']}")
    if facts["is_refused"]:
        lines.append('a run refuses this file until these lines are corrected, or with grpo.bad_rows = "skip"')
    for row in facts["rows"]:
        where = f"{row['source']}:{row['line']}" if row["source"] else f"line {row['line']}"
        lines += ["", f"{where}, {count(row['tokens'])} tokens, {row['reason'] or PARTS[row['part']]}"]
        lines += [f"    {line}" for line in row["prompt"].split("\n")]
        lines.append(f"  {'tests' if row['has_tests'] else 'answer'}: {row['answer'] or 'none'}")
        if (reward := row["reward"]) is not None:
            terms = ", ".join(f"{name} {value:g}" for name, value in reward["parts"].items())
            cut = "; the completion was cut" if reward["is_truncated"] else ""
            lines.append(f"  reward: {reward['total']:g} ({terms}): {reward['reason']}{cut}")
            if later := reward["not_computed"]:
                lines.append(f"  not computed here: {', '.join(later)} (`rewards test` calls functions)")
    return [harmless(line) for line in lines]


def stats_lines(stats: Mapping[str, Any]) -> list[str]:
    """The statistics, one table per line."""
    lines = [
        f"tasks      {count(stats['tasks'])}, {count(stats['distinct_programs'])} distinct programs, "
        f"{count(stats['duplicates'])} duplicates"
    ]
    names = {
        "by_task": "kind",
        "by_source": "source",
        "by_run": "from",
        "by_step": "step",
        "by_solve_rate": "solved",
        "by_statements": "statements",
    }
    for key, title in names.items():
        table = {TASK_NAMES.get(name, name): number for name, number in stats[key].items()}
        lines.append(f"{title:<10} " + ", ".join(f"{name}: {count(number)}" for name, number in table.items()))
    if stats["without_key"]:
        lines.append(f"not tasks  {count(stats['without_key'])} whose program or inputs could not be parsed")
    if stats["unreadable"]:
        lines.append(f"unreadable {_reasons(stats['unreadable'])}")
    return [harmless(line) for line in lines]


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """The result of an import or merge: a row per source, the total, and the first refused lines."""
    rows: list[tuple[str, ...]] = [("source", "read", "valid", "added", "duplicate", "conflict", "invalid")]
    rows += [_row(source["source"], source) for source in report["sources"]]
    if len(report["sources"]) > 1:
        rows.append(_row("all", report))
    lines = _table(rows)
    if report["invalid"]:
        lines.append(f"invalid    {_reasons(report['invalid'])}")
    if report["dropped"]:
        lines.append(f"dropped    from the data set: {_reasons(report['dropped'])}")
    for one in report["rejected"][:SHOWN]:
        lines.append(f"  {one['source']}:{one['line']}: {one['reason']}: {one['text']}")
    for one in report["conflicts"][:SHOWN]:
        outputs = ", ".join(one["outputs"]) or "nothing"
        kept = ", ".join(output for _, output in one["kept"])
        where = f" (from {one['kept_from']})" if one["kept_from"] else ""
        lines.append(f"  {one['source']}:{one['line']}: conflict: says {outputs}; kept is {kept}{where}")
    if max(len(report["rejected"]), len(report["conflicts"])) > SHOWN:
        lines.append(f"  ... more in {report['report']}")
    return [harmless(line) for line in lines] + [harmless(line) for line in _ending(report)]


def _ending(report: Mapping[str, Any]) -> list[str]:
    lines = [
        f"data set   {report['into']}: {count(report['after'])} tasks, {count(report['before'])} before"
        + ("" if report["written"] else "; nothing to change")
    ]
    if report["backup"]:
        lines.append(f"back-up    {report['backup']}")
    return [*lines, f"report     {report['report']}"]


def _row(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = [facts[key] for key in ("read", "valid", "added", "duplicate", "conflict")]
    return (name, *map(count, numbers), count(sum(facts["invalid"].values())))


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count(number)}" for name, number in reasons.items())


class Progress:
    """Shows a worker's progress: one line updated in place on a terminal, otherwise occasional lines."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._is_terminal = out, out.isatty()
        self._is_open = False
        self._began = self._reported_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._out.write(("\r\x1b[K" if self._is_open else "") + harmless(text) + "\n")
        self._out.flush()
        self._is_open = False

    def hear(self, message: Said) -> None:
        """Process one message from the worker."""
        match message:
            case Note(text=text):
                self.say(f"note: {text}")
            case Reading(text=text):
                self.say(text)
                self._began = time.monotonic()
            case Checked(done=done, total=total):
                self._tell(done, total, time.monotonic())

    def _tell(self, done: int, total: int, now: float) -> None:
        if not self._is_terminal and (now - self._reported_at < EVERY_S or done == total):
            return
        self._reported_at = now
        text = f"  {count(done)} of {count(total)} programs run"
        if 0 < done < total:
            text += f", {duration((total - done) * (now - self._began) / done)} left"
        if self._is_terminal:
            self._out.write("\r\x1b[K" + text)
            self._out.flush()
            self._is_open = True
        else:
            self.say(text)
