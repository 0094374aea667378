"""Renders evaluations as text: one line each, and a table of results. (pure)"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from orchestrator.display.wording import TASK_NAMES, count, harmless, percent
from profiles.metrics import MEAN_REWARD
from state.evaluations import SuiteFacts


def target_of(facts: SuiteFacts) -> str:
    """`step 800`, or the model's name."""
    return f"step {count(facts.target.step)}" if facts.target.step is not None else facts.target.name


def how(settings: Mapping[str, Any]) -> str:
    """`greedy`, or `8 samples at temperature 1`, plus the subset size and prompt style if not the default."""
    temperature = settings.get("temperature", 0)
    samples = settings.get("samples", 1)
    words = (
        "greedy" if not temperature else f"{samples} sample{'s' if samples > 1 else ''} at temperature {temperature:g}"
    )
    if settings.get("examples"):
        words += f", {settings['examples']} per task"
    return words if settings.get("style", "run") == "run" else f"{words}, style {settings['style']}"


def scores(metrics: Mapping[str, Mapping[str, float]], task: str) -> str:
    """`0.412 [0.38, 0.45]`, followed by every pass@k, and by the mean reward where a run's own reward judges."""
    values = metrics.get(task, {})
    score = values.get("accuracy", values.get("pass_at_1"))
    if score is None:
        return ""
    text = f"{score:.3f} [{values.get('low', score):.2f}, {values.get('high', score):.2f}]"
    others = sorted((int(name[8:]), value) for name, value in values.items() if name.startswith("pass_at_"))
    if others:
        text = f"pass@1 {text}" + "".join(f", pass@{k} {value:.3f}" for k, value in others if k > 1)
    if MEAN_REWARD.name in values:
        text += f", mean reward {values[MEAN_REWARD.name]:.3g}"
    return text


def short(facts: Mapping[str, Any]) -> str:
    """One line for `status`. facts: from `as_json`."""
    about = f"step {count(facts['step'])}" if facts["step"] is not None else str(facts["name"])
    if facts["score"] is None:
        return f"{facts['suite']} {count(facts['answered'])} of {count(facts['n'])} answered ({about}, not finished)"
    words = f"{about}, {how(facts['settings'])}, {count(facts['n'])} problems"
    return f"{facts['suite']} {scores(facts['metrics'], 'mean')} ({words})"


def as_json(facts: SuiteFacts) -> dict[str, Any]:
    return {
        "evaluation_id": facts.evaluation_id,
        "kind": facts.target.kind,
        "name": facts.target.name,
        "step": facts.target.step,
        "path": facts.target.path,
        "identity": facts.target.identity,
        "settings": dict(facts.settings),
        "suite": facts.suite,
        "n": facts.n,
        "answered": facts.answered,
        "score": facts.score,
        "low": facts.low,
        "high": facts.high,
        "metrics": {task: dict(values) for task, values in facts.metrics.items()},
    }


def table(found: Sequence[SuiteFacts]) -> str:
    """A table with one line per task of each suite."""
    rows = [("suite", "task", "problems", "score [95 %]", "malformed", "tokens")]
    for facts in found:
        tasks = [task for task in facts.metrics if task != "mean"]
        for task in tasks + (["mean"] if len(tasks) > 1 else []):
            values = facts.metrics[task]
            rows.append(
                (
                    facts.suite,
                    TASK_NAMES.get(task, task),
                    count(values["n"]),
                    scores(facts.metrics, task),
                    percent(values.get("malformed")),
                    f"{values.get('mean_tokens', 0):.0f}",
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(harmless(line.rstrip()) + "\n" for line in lines)


def to_stderr_or_stdout(*, as_json: bool) -> TextIO:
    """The stream for progress, which must not mix with JSON."""
    return sys.stderr if as_json else sys.stdout
