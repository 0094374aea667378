"""Tiles about self-play: rewards by task and role, buffers, training signals, the newest task. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from orchestrator.display.columns import Column, table
from orchestrator.display.glyphs import sparkline
from orchestrator.display.view import Curve, View
from orchestrator.display.wording import TASK_NAMES, count, harmless, percent
from profiles.metrics import BUFFER, CLIP_FRACTION, REWARD_FORMAT, REWARD_LENGTH, Unit, label_of, metric_of
from profiles.task_kinds import LOOKS

TASK_COLOURS = {**{task: look.terminal for task, look in LOOKS.items()}, "mean": "#2fae71"}
GOOD, BAD, CALM = "#2fae71", "#e0524d", "#3b9eff"


def named(task: str, width: int) -> Text:
    name = TASK_NAMES.get(task, harmless(task))
    return Text(name if len(name) <= width else name[:3], TASK_COLOURS.get(task, ""))


@dataclass(frozen=True)
class _Play:
    """The curves of one task."""

    task: str
    propose: Curve | None
    solve: Curve | None
    worked: Curve | None
    tokens: Curve | None


def play(view: View, width: int, height: int) -> list[Text]:
    """Rewards by role, worked share and rollout length, by task. For GRPO, signals about the rollouts."""
    if not view.kind.finds_tasks and view.signals:
        form = [curve for curve in view.rewards if curve.name in (REWARD_FORMAT.name, REWARD_LENGTH.name)]
        groups = [curve for curve in view.signals if _is_of_rollouts(view, curve)]
        return table(_CURVE_COLUMNS, [*groups[:1], *form, *groups[1:]], width)[1 : height + 1]
    tasks = list(dict.fromkeys(c.task for c in (*view.rewards, *view.worked, *view.tokens) if c.task))
    if not tasks:
        return [Text("no step finished yet", "dim")]
    rows = [
        _Play(
            task,
            _find(view.rewards, task, "propose"),
            _find(view.rewards, task, "solve"),
            _find(view.worked, task),
            _find(view.tokens, task),
        )
        for task in tasks
    ]
    return table(_PLAY_COLUMNS, rows, width)[:height]


def _find(curves: Sequence[Curve], task: str, role: str = "") -> Curve | None:
    return next((c for c in curves if c.task == task and c.role == role), None)


def _play_spark(name: str, low: float | None, high: float | None) -> Callable[[_Play, int], Text]:
    def cell(row: _Play, width: int) -> Text:
        curve: Curve | None = getattr(row, name)
        drawn = sparkline(curve.values, width, low, high) if curve else ""
        return Text(drawn, TASK_COLOURS.get(row.task, ""))

    return cell


def _play_last(name: str, form: str) -> Callable[[_Play, int], Text]:
    def cell(row: _Play, _width: int) -> Text:
        curve: Curve | None = getattr(row, name)
        return Text(format(curve.last, form) if curve else "")

    return cell


_PLAY_COLUMNS: tuple[Column[_Play], ...] = (
    Column("", 9, lambda row, width: named(row.task, width), rank=0),
    Column("proposer", 8, _play_spark("propose", -1, 1), rank=1, flex=True),
    Column("", 5, _play_last("propose", "+.2f"), rank=5, right=True),
    Column("solver", 8, _play_spark("solve", -1, 1), rank=1, flex=True),
    Column("", 5, _play_last("solve", "+.2f"), rank=4, right=True),
    Column("worked", 7, _play_spark("worked", 0, 1), rank=7, flex=True),
    Column("", 4, _play_last("worked", ".0%"), rank=6, right=True),
    Column("length", 7, _play_spark("tokens", 0, None), rank=9, flex=True),
    Column("", 3, _play_last("tokens", ".0f"), rank=8, right=True),
)

_CURVE_COLUMNS: tuple[Column[Curve], ...] = (
    Column("", 13, lambda curve, width: _curve_name(curve, width)),
    Column("", 8, lambda curve, width: _curve_spark(curve, width), flex=True),
    Column("", 8, lambda curve, _width: Text(_quantity(curve)), right=True),
)


def _curve_name(curve: Curve, width: int) -> Text:
    return named(curve.task, width) if curve.task else Text(harmless(label_of(curve.name)), "dim")


def _curve_spark(curve: Curve, width: int) -> Text:
    return Text(sparkline(curve.values, width), TASK_COLOURS.get(curve.task, ""))


_SMALL_SHARES = (CLIP_FRACTION.name,)
"""Whole percent would be 0."""


def _quantity(curve: Curve) -> str:
    if curve.name.startswith(BUFFER.of("")) or (unit := metric_of(curve.name).unit) is Unit.RATE:
        return count(curve.last)
    return percent(curve.last) if unit is Unit.SHARE and curve.name not in _SMALL_SHARES else f"{curve.last:.3g}"


def data(view: View, width: int, height: int) -> list[Text]:
    """Buffers by task and the number of tasks found. For GRPO, the place in the problem file."""
    if not view.kind.finds_tasks:
        if view.reading is None:
            return [Text("no problem read yet", "dim")]
        return [Text(harmless(line)) for line in (view.reading.place, view.reading.right)][:height]
    lines = table(_CURVE_COLUMNS, view.buffers, width)[1:] if view.buffers else [Text("buffers are empty", "dim")]
    found = Text("found ", "dim").append(count(view.examples), "bold").append(" distinct tasks")
    return [*lines[: height - 1], found]


def _is_of_rollouts(view: View, curve: Curve) -> bool:
    return curve.name in [one.name for one in view.kind.rollout_signals]


def signals(view: View, width: int, height: int) -> list[Text]:
    curves = [one for one in view.signals if not _is_of_rollouts(view, one)]
    return table(_CURVE_COLUMNS, curves, width)[1 : height + 1] if curves else []


def example(view: View, width: int, height: int) -> list[Text]:
    """The newest task, with its model-written program made harmless."""
    task = view.example
    if task is None:
        return [Text("no task found yet", "dim")]
    solved = "" if task.solve_rate is None else f", solved {percent(task.solve_rate)}"
    top = named(task.task, 20).append(f"  step {task.step}{solved}", "dim")
    room = max(1, height - 2)
    program = [Text(line) for line in task.program[:room]]
    if len(task.program) > room:
        program[-1] = Text(f"… {len(task.program) - room + 1} more lines", "dim")
    visible = task.pairs[: max(1, height - 1 - len(program))]
    calls = [Text("f(", "dim").append(given).append(") → ", "dim").append(wanted) for given, wanted in visible]
    return [top, *program, *calls][:height]
