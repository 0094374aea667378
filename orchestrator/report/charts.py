"""The charts of one run: held-out scores, training, distributions, time. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from orchestrator.display.scores import Score, TaskScores, task_scores
from orchestrator.display.view import ROLES
from orchestrator.display.wording import TASK_NAMES
from orchestrator.report.curves import fan_charts, line_of, points_of, range_of, throughput, time_chart, what_a_point_is
from orchestrator.report.svg import Area, Chart, Line
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
    LENGTHS_AT,
    REWARDS_AT,
    SECONDS,
    SKIPPED_SHARE,
    TOKENS_MAX,
    TOKENS_MEAN,
    TOKENS_PER_S,
    Metric,
    Unit,
)
from profiles.task_kinds import SHOWN
from state.history import ValidationFacts
from state.series import Thinned

GRPO_CHARTS = {
    "Accuracy in training": (ACCURACY, ANSWERED),
    "Groups": (SKIPPED_SHARE, GROUP_SPREAD),
    "Policy": (ENTROPY, KEPT_TOKENS),
    "Update": (CLIP_LOW, CLIP_HIGH, KL),
    "Length": (TOKENS_MEAN, TOKENS_MAX),
}
"""Title -> its metrics; these say what it shows."""
NUM_COLOURS = 8
"""Colours `run0`, `run1`, ... of the style sheet."""
OF_ANSWERS: tuple[tuple[str, str, Callable[[Score], float | None]], ...] = (
    ("Mean reward of greedy answers", "held-out problems, by the run's own reward", lambda score: score.reward),
    ("Length of sampled answers", "tokens, held-out problems", lambda score: score.tokens),
)
"""Title, what it shows, and the value of each validation."""
CELLS = tuple(CELL_REWARD.of(f"{role}_") for role in ROLES)


def charted(names: Collection[str]) -> list[str]:
    """Those metrics that a chart shows."""
    alone = {one.name for metrics in GRPO_CHARTS.values() for one in metrics} | {SECONDS.name}
    families = tuple(f"{family}/" for family in (REWARDS_AT.family, LENGTHS_AT.family, BUFFER.family, SECONDS.name))
    return [name for name in names if name in alone or name.startswith((*families, *CELLS))]


# --- held-out problems ------------------------------------------------------------------------------------------------


def score_charts(rows: Sequence[TaskScores]) -> list[Chart]:
    """A chart per task and for the mean, then those for rewards and for the length of answers."""
    charts = [score_chart(row, style=style_of(rows, row.task)) for row in (*rows[-1:], *rows[:-1])]
    for title, note, value in OF_ANSWERS:
        lines = tuple(
            Line(
                TASK_NAMES.get(row.task, row.task),
                style_of(rows, row.task),
                tuple((score.step, found) for score in row.scores if (found := value(score)) is not None),
            )
            for row in rows
            if row.task != "mean"
        )
        if any(line.points for line in lines):
            charts.append(Chart(title, note, lines))
    return charts


def style_of(rows: Sequence[TaskScores], task: str) -> str:
    """A task's own colour, or one by its place among those without."""
    if task in (*SHOWN, "mean"):
        return task
    return f"run{[row.task for row in rows if row.task not in (*SHOWN, 'mean')].index(task) % NUM_COLOURS}"


def other_suites(validations: Sequence[ValidationFacts], first: ValidationFacts | None) -> list[Chart]:
    """A chart of the mean over tasks for each suite except the run's first."""
    names = sorted({one.suite for one in validations} - {first.suite if first else ""})
    rows = {name: task_scores(tuple(one for one in validations if one.suite == name), None) for name in names}
    return [score_chart(found[-1], name) for name, found in rows.items() if found]


def score_chart(row: TaskScores, suite: str = "", style: str = "mean") -> Chart:
    scores = row.scores
    lines = [Line("greedy", style, tuple((p.step, p.greedy) for p in scores))]
    sampled = tuple((p.step, p.sampled) for p in scores if p.sampled is not None)
    worked = tuple((p.step, p.worked) for p in scores if p.worked is not None)
    lines += [Line("sampled", f"{style} sampled", sampled)] if sampled else []
    lines += [Line("worked share", "worked", worked)] if worked else []
    band = Area(style, tuple((p.step, p.low) for p in scores), tuple((p.step, p.high) for p in scores))
    title = f"Held-out: {suite or TASK_NAMES.get(row.task, row.task)}"
    return Chart(title, "accuracy; band: 95 % interval of greedy", tuple(lines), (band,), (0.0, 1.0))


# --- training ---------------------------------------------------------------------------------------------------------


def step_charts(series: Thinned) -> list[Chart]:
    """What the steps of training reported."""
    every = what_a_point_is(series)
    training = grpo_charts(series) if GROUP_SPREAD.name in series.metrics else self_play_charts(series)
    rates = (*throughput(series, "all of a step", "run0"), *line_of(series, TOKENS_PER_S.name, "generation", "run1"))
    named = {SECONDS.name, *(name for name in (TOKENS_PER_S.name,) if name in series.metrics)}
    speed = (
        [Chart("Throughput", f"completion tokens a second{what_a_point_is(series, *named)}", rates)] if rates else []
    )
    return [*training, *fan_charts(series, every), *time_chart(series, every), *speed, _step_time(series)]


def grpo_charts(series: Thinned) -> list[Chart]:
    charts = []
    for title, metrics in GRPO_CHARTS.items():
        lines = [
            line for n, one in enumerate(metrics) for line in line_of(series, one.name, one.label, f"run{n}")
        ]  # a step without an update reports some of them only
        areas = [area for n, one in enumerate(metrics) for area in range_of(series, one.name, f"run{n}")]
        note = f"{note_of(metrics)}{what_a_point_is(series)}{'; bands: lowest and highest step' if areas else ''}"
        charts.append(Chart(title, note, tuple(lines), tuple(areas)))
    return charts


def note_of(metrics: Sequence[Metric]) -> str:
    """What each metric of a chart is, and its unit."""
    units = [f" ({one.unit})" if one.unit is not Unit.NONE else "" for one in metrics]
    return "; ".join(f"{one.label}{unit}: {one.meaning}" for one, unit in zip(metrics, units, strict=True))


def self_play_charts(series: Thinned) -> list[Chart]:
    every = what_a_point_is(series)
    return [
        Chart(
            "Solver's reward",
            f"in training, by task; not a measure of progress{every}",
            by_task(series, CELL_REWARD.of("solve_")),
        ),
        Chart("Proposer's reward", f"in training, by task{every}", by_task(series, CELL_REWARD.of("propose_"))),
        Chart("Buffers", f"tasks by kind{every}", by_task(series, BUFFER.of(""))),
    ]


def by_task(series: Thinned, prefix: str) -> tuple[Line, ...]:
    """A line for each task with a metric `prefix` + task."""
    tasks = sorted(
        {name[len(prefix) :] for name in series.metrics if name.startswith(prefix)}, key=lambda t: (t not in SHOWN, t)
    )
    lines = (
        Line(TASK_NAMES.get(task, task), task if task in SHOWN else "other", points_of(series, prefix + task))
        for task in tasks
    )
    return tuple(line for line in lines if line.points)


def _step_time(series: Thinned) -> Chart:
    areas = range_of(series, SECONDS.name, "run0")
    note = (
        f"{SECONDS.label}{what_a_point_is(series, SECONDS.name)}{'; band: fastest and slowest step' if areas else ''}"
    )
    return Chart("Step time", note, line_of(series, SECONDS.name, "step", "run0"), areas, unit=f" {SECONDS.unit}")
