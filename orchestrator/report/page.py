"""Writes report.html, a self-contained report of a run.

Uses no remote resources, forbids them with a content security policy, and escapes every text, since programs come from
a model.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from time import gmtime, strftime
from typing import Any

from orchestrator.display.reading import reading_of
from orchestrator.display.scores import TaskScores, task_scores
from orchestrator.display.wording import TASK_NAMES, count, duration, pairs, percent, points, score
from orchestrator.report.axes import Clock
from orchestrator.report.cards import chart_section
from orchestrator.report.charts import other_suites, score_charts, step_charts
from orchestrator.report.escaping import embedded, text
from orchestrator.report.facts import Facts, read_facts
from orchestrator.report.style import SCRIPT, STYLE
from orchestrator.report.tables import checkpoints, cycles, evaluations, failures, time
from state.durable import write_file
from state.layout import RunDir


def write_report(run: RunDir, path: Path | None = None) -> Path:
    """Write a report from the store and return its path. path: None for the run's own report.html.

    Raises LonghaulError if the run cannot be read.
    """
    page, target = render(read_facts(run)), path or run.report
    write_file(target, page.encode("utf-8", "replace"))
    return target


def render(facts: Facts) -> str:
    """The page as HTML. (pure)"""
    first = facts.history.first_validation
    rows = task_scores(facts.validations, first)
    charts = [*score_charts(rows), *other_suites(facts.validations, first), *step_charts(facts.series)]
    curves, data = chart_section(charts, [Clock.of(facts.series)])
    body = [
        headline(facts),
        cards(facts, rows),
        section("Curves", curves),
        section("Where the time went", time(facts)),
        section("Evaluations", evaluations(facts)),
        *([section("Newest self-play tasks", examples(facts))] if facts.finds_tasks else []),
        section("Cycles", cycles(facts)),
        section("Checkpoints", checkpoints(facts)),
        section("Failed attempts", failures(facts)),
        section("Profile, as resolved", profile(facts)),
    ]
    return page(f"Longhaul: {facts.history.name}", "\n".join(body), data)


def page(title: str, body: str, data: dict[str, Any]) -> str:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">
<title>{text(title)}</title><style>{STYLE}</style></head>
<body>
{body}
<script type="application/json" id="data">{embedded(data)}</script>
<script>{SCRIPT}</script>
</body></html>
"""


# --- the head of the page --------------------------------------------------------------------------------------------


def headline(facts: Facts) -> str:
    history = facts.history
    began = strftime("%Y-%m-%d %H:%M UTC", gmtime(history.created_at))
    reason = f": {history.stop_reason}" if history.stop_reason else ""
    return (
        f"<h1>{text(history.name)}</h1>"
        f'<p class="sub">profile {text(facts.profile.get("name", "?"))}, started {began}, '
        f"<b>{text(history.state.value)}</b>{text(reason)}</p>"
    )


def cards(facts: Facts, rows: Sequence[TaskScores]) -> str:
    history = facts.history
    shown = []
    if rows:
        first, last = rows[-1].first, rows[-1].last
        shown.append(
            (
                f"{score(first.greedy)} → {score(last.greedy)}",
                f"greedy accuracy, mean of the tasks; {points(rows[-1].change)} points, "
                f"95 % [{first.low:.2f}, {first.high:.2f}] → [{last.low:.2f}, {last.high:.2f}]",
            )
        )
        if first.sampled is not None and last.sampled is not None:
            shown.append((f"{score(first.sampled)} → {score(last.sampled)}", "sampled accuracy (temperature 1)"))
        if first.reward is not None and last.reward is not None:
            shown.append(
                (f"{first.reward:.3g} → {last.reward:.3g}", "mean reward of greedy answers, held-out problems")
            )
        if first.worked is not None and last.worked is not None:
            shown.append((f"{percent(first.worked)} → {percent(last.worked)}", "answers with working"))
    shown += [
        (count(history.step), f"steps in {count(history.cycles_done)} cycles"),
        (duration(history.training_s), "of training"),
    ]
    if facts.finds_tasks:
        shown.append((count(history.examples), "distinct tasks found"))
    elif reading := reading_of(facts.newest):
        shown.append((percent(reading.accuracy), f"of rollouts right, last {count(reading.steps)} steps"))
        shown.append((reading.place, f"problems, {count(reading.drawn)} drawn in total"))
    inner = "".join(
        f'<div class="card"><div class="big">{text(a)}</div><div class="note">{text(b)}</div></div>' for a, b in shown
    )
    return f'<div class="cards">{inner}</div>'


def section(title: str, inner: str) -> str:
    return f"<h2>{text(title)}</h2>\n{inner}"


def examples(facts: Facts) -> str:
    if not facts.examples:
        return '<p class="none">none yet</p>'
    return f'<div class="charts">{"".join(map(example, facts.examples))}</div>'


def example(row: dict[str, Any]) -> str:
    rate = row.get("solve_rate")
    solved = f", solved {percent(rate)}" if rate is not None else ""
    program = "\n".join(text(line) for line in str(row["program"]).split("\n"))
    calls = "<br>".join(f"f({text(a)}) → {text(b)}" for a, b in pairs(str(row["input"]), str(row["output"])))
    return (
        f'<div class="card"><h3>{text(TASK_NAMES.get(row["task"], row["task"]))}</h3>'
        f'<div class="note">step {text(row["step"])}{text(solved)}</div><pre>{program}</pre>'
        f"<code>{calls}</code></div>"
    )


def profile(facts: Facts) -> str:
    shown = "\n".join(text(line) for line in json.dumps(facts.profile, indent=2, ensure_ascii=False).split("\n"))
    return f"<details><summary>all knobs</summary><pre>{shown}</pre></details>"
