"""Writes report.html, a self-contained report of a run.

Uses no remote resources, forbids them with a content security policy, and escapes every text, since programs come from
a model.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from time import gmtime, strftime
from typing import Any

from orchestrator.display.reading import reading_of
from orchestrator.display.scores import TaskScores, task_scores
from orchestrator.display.wording import TASK_NAMES, count, duration, pairs, percent, points, score
from orchestrator.report.escaping import embedded, text
from orchestrator.report.facts import Facts, read_facts
from orchestrator.report.style import SCRIPT, STYLE
from orchestrator.report.svg import LEFT, RIGHT, WIDTH, Area, Chart, Line, draw, scale_of
from orchestrator.report.tables import checkpoints, cycles, evaluations, failures
from profiles.metrics import (
    ACCURACY,
    ANSWERED,
    BUFFER,
    CELL_REWARD,
    CLIP_HIGH,
    CLIP_LOW,
    ENTROPY,
    GROUP_SPREAD,
    KEPT_TOKENS,
    KL,
    SECONDS,
    SKIPPED_SHARE,
    TOKENS_MAX,
    TOKENS_MEAN,
    Metric,
    Unit,
)
from profiles.task_kinds import SHOWN
from state.durable import write_file
from state.history import StepFacts
from state.layout import RunDir


def write_report(run: RunDir) -> Path:
    """Write report.html from the store and return its path. Raises LonghaulError if the run cannot be read."""
    page = render(read_facts(run))
    write_file(run.report, page.encode("utf-8", "replace"))
    return run.report


def render(facts: Facts) -> str:
    """The page as HTML. (pure)"""
    rows = task_scores(facts.validations, facts.history.first_validation)
    drawn = (*score_charts(rows), *other_suites(facts), *step_charts(facts))
    charts = {f"c{number}": chart for number, chart in enumerate(drawn)}
    body = [
        headline(facts),
        cards(facts, rows),
        section("Curves", f'<div class="charts">{"".join(chart_card(*item) for item in charts.items())}</div>'),
        section("Evaluations", evaluations(facts)),
        *([section("Newest self-play tasks", examples(facts))] if facts.finds_tasks else []),
        section("Cycles", cycles(facts)),
        section("Checkpoints", checkpoints(facts)),
        section("Failed attempts", failures(facts)),
        section("Profile, as resolved", profile(facts)),
    ]
    return page(f"Longhaul: {facts.history.name}", "\n".join(body), data_of(charts))


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
    elif reading := reading_of(facts.steps):
        shown.append((percent(reading.accuracy), f"of rollouts right, last {count(reading.steps)} steps shown"))
        shown.append((reading.place, f"problems, {count(reading.drawn)} drawn in total"))
    inner = "".join(
        f'<div class="card"><div class="big">{text(a)}</div><div class="note">{text(b)}</div></div>' for a, b in shown
    )
    return f'<div class="cards">{inner}</div>'


def section(title: str, inner: str) -> str:
    return f"<h2>{text(title)}</h2>\n{inner}"


# --- charts ----------------------------------------------------------------------------------------------------------


def score_charts(rows: Sequence[TaskScores]) -> list[Chart]:
    """A chart per task and for the mean, then those for rewards and for the length of answers."""
    charts = [score_chart(row) for row in (*rows[-1:], *rows[:-1])]
    rewards = tuple(
        Line(
            TASK_NAMES.get(row.task, row.task),
            row.task,
            tuple((p.step, p.reward) for p in row.scores if p.reward is not None),
        )
        for row in rows
        if row.task != "mean"
    )
    if any(line.points for line in rewards):
        charts.append(Chart("Mean reward of greedy answers", "held-out problems, by the run's own reward", rewards))
    lengths = tuple(
        Line(
            TASK_NAMES.get(row.task, row.task),
            row.task,
            tuple((p.step, p.tokens) for p in row.scores if p.tokens is not None),
        )
        for row in rows
        if row.task != "mean"
    )
    if any(line.points for line in lengths):
        charts.append(Chart("Length of sampled answers", "tokens, held-out problems", lengths))
    return charts


def other_suites(facts: Facts) -> list[Chart]:
    """A chart of the mean over tasks for each suite except the run's first."""
    first = facts.history.first_validation
    names = sorted({one.suite for one in facts.validations} - {first.suite if first else ""})
    rows = {name: task_scores(tuple(one for one in facts.validations if one.suite == name), None) for name in names}
    return [score_chart(found[-1], name) for name, found in rows.items() if found]


def score_chart(row: TaskScores, suite: str = "") -> Chart:
    scores = row.scores
    lines = [Line("greedy", row.task, tuple((p.step, p.greedy) for p in scores))]
    sampled = tuple((p.step, p.sampled) for p in scores if p.sampled is not None)
    worked = tuple((p.step, p.worked) for p in scores if p.worked is not None)
    lines += [Line("sampled", f"{row.task} sampled", sampled)] if sampled else []
    lines += [Line("worked share", "worked", worked)] if worked else []
    band = Area(row.task, tuple((p.step, p.low) for p in scores), tuple((p.step, p.high) for p in scores))
    title = f"Held-out: {suite or TASK_NAMES.get(row.task, row.task)}"
    return Chart(title, "accuracy by step; band: 95 % interval of greedy", tuple(lines), (band,), (0.0, 1.0))


GRPO_CHARTS = {
    "Accuracy in training": (ACCURACY, ANSWERED),
    "Groups": (SKIPPED_SHARE, GROUP_SPREAD),
    "Policy": (ENTROPY, KEPT_TOKENS),
    "Update": (CLIP_LOW, CLIP_HIGH, KL),
    "Length": (TOKENS_MEAN, TOKENS_MAX),
}
"""Title -> its metrics; these say what it shows."""


def grpo_charts(steps: Sequence[StepFacts], every: str) -> list[Chart]:
    return [
        Chart(title, f"{note_of(metrics)}{every}", tuple(line for one in metrics for line in by_name(steps, one)))
        for title, metrics in GRPO_CHARTS.items()
    ]


def note_of(metrics: Sequence[Metric]) -> str:
    """What each metric of a chart is, and its unit."""
    units = [f" ({one.unit})" if one.unit is not Unit.NONE else "" for one in metrics]
    return "; ".join(f"{one.label}{unit}: {one.meaning}" for one, unit in zip(metrics, units, strict=True))


def by_name(steps: Sequence[StepFacts], metric: Metric) -> tuple[Line, ...]:
    """The line of one metric, without steps that do not report it, such as a step without an update."""
    name = metric.name
    points = tuple((s.step, s.metrics[name]) for s in steps if _is_number(s.metrics.get(name)))
    return (Line(metric.label, "other", points),) if points else ()


def step_charts(facts: Facts) -> list[Chart]:
    steps, every = facts.steps, "" if facts.stride == 1 else f", every {facts.stride}th step"
    if steps and GROUP_SPREAD.name in steps[-1].metrics:
        return [*grpo_charts(steps, every), _step_time(steps, every)]
    return [
        Chart(
            "Solver's reward",
            f"in training, by task{every}; not a measure of progress",
            by_task(steps, CELL_REWARD.of("solve_")),
        ),
        Chart("Proposer's reward", f"in training, by task{every}", by_task(steps, CELL_REWARD.of("propose_"))),
        Chart("Buffers", f"tasks by kind{every}", by_task(steps, BUFFER.of(""))),
        _step_time(steps, every),
    ]


def _step_time(steps: Sequence[StepFacts], every: str) -> Chart:
    points = tuple((s.step, s.seconds) for s in steps)
    return Chart("Step time", f"{SECONDS.label}{every}", (Line("step", "other", points),), unit=f" {SECONDS.unit}")


def by_task(steps: Sequence[StepFacts], prefix: str) -> tuple[Line, ...]:
    """A line for each task with a metric `prefix` + task."""
    names = steps[-1].metrics if steps else {}
    tasks = sorted(
        {name[len(prefix) :] for name in names if name.startswith(prefix)}, key=lambda t: (t not in SHOWN, t)
    )
    return tuple(
        Line(
            TASK_NAMES.get(task, task),
            task if task in SHOWN else "other",
            tuple((s.step, s.metrics[prefix + task]) for s in steps if _is_number(s.metrics.get(prefix + task))),
        )
        for task in tasks
    )


def _is_number(value: float | None) -> bool:
    return isinstance(value, int | float) and value == value and abs(value) != float("inf")


def chart_card(key: str, chart: Chart) -> str:
    mark = '<svg viewBox="0 0 20 8"><line class="line {}" x1="0" x2="20" y1="4" y2="4"/></svg>'
    legend = "".join(
        f"<span>{mark.format(escape(line.style))}{text(line.name)}<b></b></span>" for line in chart.lines if line.points
    )
    return (
        f'<div class="card"><h3>{text(chart.title)}</h3>'
        f'<div class="note">{text(chart.note)}<span class="at"></span></div>'
        f'<div class="legend">{legend}</div>{draw(chart, key)}</div>'
    )


def data_of(charts: dict[str, Chart]) -> dict[str, Any]:
    """Data of each chart for the values shown under the pointer."""
    data: dict[str, Any] = {}
    for key, chart in charts.items():
        lines = [line for line in chart.lines if line.points]
        if lines:
            scale, _x, _y = scale_of(chart)
            data[key] = {
                "x": [scale.x_low, scale.x_high],
                "plot": [LEFT, RIGHT, WIDTH],
                "unit": chart.unit,
                "lines": [{"points": [[x, round(y, 6)] for x, y in line.points]} for line in lines],
            }
    return data


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
