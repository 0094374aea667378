"""Which curves a page draws of the metrics that a run reports. (pure)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.display.wording import TASK_NAMES
from profiles.metrics import (
    ACCEPT_RATE,
    ACCURACY,
    ALL_RIGHT,
    ALL_WRONG,
    ANSWERED,
    BUFFER,
    CELL_REWARD,
    CLIP_FRACTION,
    CLIP_HIGH,
    CLIP_LOW,
    ENTROPY,
    GRAD_NORM,
    GROUP_SPREAD,
    KEPT_TOKENS,
    KL,
    LEARNABLE,
    LEARNING_RATE,
    LOSS,
    MISMATCH_MAX,
    MISMATCH_MEAN,
    NEW_EXAMPLES,
    PHASE_ALLOCATED,
    REWARD,
    RSS,
    SECONDS,
    SKIPPED_SHARE,
    TASK_TOKENS_MEAN,
    TASK_WORKED,
    TOKENS_MAX,
    TOKENS_MEAN,
    TOKENS_PER_S,
    TRUNCATED,
    UNIFORM_SHARE,
    Metric,
    Unit,
    metric_of,
)
from profiles.task_kinds import SHOWN
from profiles.worker_kinds import WorkerKind

Chart = dict[str, Any]
"""title, note, unit, share (values from 0 to 1) and lines: metric, label and style, a class of the style sheet."""

SELF_PLAY: tuple[tuple[str, str, str], ...] = (
    ("Solver's reward", "in training, by kind of task; not a measure of progress", CELL_REWARD.of("solve_")),
    ("Proposer's reward", "in training, by kind of task", CELL_REWARD.of("propose_")),
    ("Worked answers", TASK_WORKED.meaning, TASK_WORKED.of("")),
    ("Length of answers", TASK_TOKENS_MEAN.meaning, TASK_TOKENS_MEAN.of("")),
    ("Buffers", "tasks found, by kind", BUFFER.of("")),
)
"""Title, note, and how the names of the metrics begin; the rest names a kind of task."""
SELF_PLAY_MORE: dict[str, tuple[Metric, ...]] = {
    "New tasks": (NEW_EXAMPLES, LEARNABLE),
    "Accepted proposals": (ACCEPT_RATE,),
    "Policy": (ENTROPY,),
    "Clipped tokens": (CLIP_FRACTION,),
}
GRPO: dict[str, tuple[Metric, ...]] = {
    "Reward": (REWARD,),
    "Accuracy in training": (ACCURACY, ANSWERED),
    "Groups": (SKIPPED_SHARE, UNIFORM_SHARE, ALL_RIGHT, ALL_WRONG),
    "Spread of rewards": (GROUP_SPREAD,),
    "Length": (TOKENS_MEAN, TOKENS_MAX),
    "Cut answers": (TRUNCATED,),
    "Policy": (ENTROPY,),
    "Kept tokens": (KEPT_TOKENS,),
    "Clipped tokens": (CLIP_LOW, CLIP_HIGH, CLIP_FRACTION),
    "Distance to the first model": (KL,),
}
ALL: dict[str, tuple[Metric, ...]] = {
    "Loss": (LOSS,),
    "Gradient": (GRAD_NORM,),
    "Learning rate": (LEARNING_RATE,),
    "Sampler and trainer": (MISMATCH_MEAN, MISMATCH_MAX),
    "Speed": (TOKENS_PER_S,),
}
TIMES = "Where the time goes"
STYLES = ("a", "b", "c", "d", "e", "f")
"""Classes of lines that are no kind of task."""


def charts_of(names: Sequence[str], kind: WorkerKind) -> list[Chart]:
    """Those of which a run reports something, the most telling first."""
    known = set(names)
    own = (*_by_task(known), *_listed(SELF_PLAY_MORE, known)) if kind.finds_tasks else _listed(GRPO, known)
    return [*own, *_times(names), *_listed(ALL, known), *_memory(names)]


def _by_task(known: set[str]) -> Iterator[Chart]:
    for title, note, prefix in SELF_PLAY:
        tasks = sorted((name[len(prefix) :] for name in known if name.startswith(prefix)), key=_task_order)
        tasks = [task for task in tasks if "/" not in task and "_" not in task]
        lines = [
            {"metric": prefix + task, "label": TASK_NAMES.get(task, task), "style": task if task in SHOWN else "a"}
            for task in tasks
        ]
        if lines:
            yield _chart(title, note, lines, declared(lines[0]["metric"]))


def _task_order(task: str) -> tuple[int, str]:
    return (SHOWN.index(task) if task in SHOWN else len(SHOWN)), task


def _listed(charts: dict[str, tuple[Metric, ...]], known: set[str]) -> Iterator[Chart]:
    for title, metrics in charts.items():
        there = [one for one in metrics if one.name in known]
        if there:
            note = "; ".join(f"{one.label}: {one.meaning}" for one in there) if len(there) > 1 else there[0].meaning
            lines = [
                {"metric": one.name, "label": one.label, "style": style}
                for one, style in zip(there, STYLES, strict=False)
            ]
            yield _chart(title, note, lines, there[0])


def _times(names: Sequence[str]) -> Iterator[Chart]:
    parts = [name for name in names if name.startswith(f"{SECONDS.name}/")]
    lines = [
        {"metric": name, "label": name.rpartition("/")[2], "style": style}
        for name, style in zip([SECONDS.name, *parts], STYLES, strict=False)
        if name in names
    ]
    if lines:
        lines[0]["label"] = "whole step"
        yield _chart(TIMES, "seconds of a step and of its parts", lines, SECONDS)


def _memory(names: Sequence[str]) -> Iterator[Chart]:
    gpu = {name: name.split("/")[1] for name in names if declared(name) is PHASE_ALLOCATED}
    shown = gpu or {name: "worker" for name in (RSS.name,) if name in names}
    lines = [
        {"metric": name, "label": label, "style": style}
        for (name, label), style in zip(shown.items(), STYLES, strict=False)
    ]
    if lines:
        note = PHASE_ALLOCATED.meaning if gpu else RSS.meaning
        yield _chart("Memory", note, lines, declared(lines[0]["metric"]))


def _chart(title: str, note: str, lines: list[dict[str, str]], metric: Metric | None) -> Chart:
    unit = metric.unit if metric is not None else Unit.NONE
    return {
        "title": title,
        "note": note,
        "unit": "" if unit in (Unit.NONE, Unit.COUNT, Unit.REWARD) else str(unit),
        "share": unit is Unit.SHARE,
        "lines": lines,
    }


def declared(name: str) -> Metric | None:
    """The metric of a name; None for one that profiles/metrics.py does not know."""
    try:
        return metric_of(name)
    except KeyError:
        return None


def listed(names: Sequence[str]) -> list[dict[str, str]]:
    """Every metric with its unit and meaning, for a list to choose from."""
    found = []
    for name in names:
        metric = declared(name)
        unit = str(metric.unit) if metric is not None and metric.unit is not Unit.NONE else ""
        found.append({"name": name, "unit": unit, "meaning": metric.meaning if metric is not None else ""})
    return found
