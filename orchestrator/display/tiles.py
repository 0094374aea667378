"""The dashboard's tiles: functions from a View and a size to styled lines. (pure)

Foreign text is safe here: View has made it harmless, and Text interprets no markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import localtime, strftime

from rich.text import Text

from orchestrator.display.arrange import SMALL_WIDTH
from orchestrator.display.columns import Column, table
from orchestrator.display.glyphs import bar, chart, sparkline
from orchestrator.display.play_tiles import BAD, CALM, GOOD, TASK_COLOURS, data, example, named, play, signals
from orchestrator.display.scores import Score, TaskScores
from orchestrator.display.view import View
from orchestrator.display.wording import duration, harmless, percent, points, score, size
from state import event_kinds

STATE_STYLES = {"running": f"bold {GOOD}", "failed": f"bold {BAD}", "stagnant": "bold #f0902a"}
CHART_COLOURS = (("greedy", "#2fae71"), ("sampled", "#3b9eff"), ("worked share", "#f0902a"))
PAGE_KEYS = (("?", "explain"), ("e", "events"), ("s", "samples"), ("m", "metrics"))
STEERING_KEYS = (("p", "pause"), ("v", "validate"), ("+ -", "cycles"))
SAVE_KEY = ("Ctrl+X", "checkpoint")
KEYS: tuple[tuple[str, str], ...] = (("Ctrl+C", "stop"), SAVE_KEY, ("q", "leave"), *PAGE_KEYS, *STEERING_KEYS)
"""The most needed first: a narrow terminal shows as many as fit."""
TOP_KEYS: tuple[tuple[str, str], ...] = (("q", "quit"), *PAGE_KEYS, *STEERING_KEYS, SAVE_KEY)


# --- progress ------------------------------------------------------------------------------------------------------


def header(view: View, width: int, height: int) -> list[Text]:
    return [_status_line(view, width), _cycle_line(view, width), _step_line(view, width)][:height]


def _status_line(view: View, width: int) -> Text:
    left = Text()
    left.append("● ", STATE_STYLES.get(view.state, "bold")).append(view.phase, "bold")
    cycles = f" of {view.max_cycles}" if view.max_cycles else ""
    left.append(f"   cycle {view.cycle}{cycles}   step {view.step}")
    if view.failures:
        left.append(f"   {view.failures} failed attempt{'s' if view.failures > 1 else ''}", BAD)
    if view.reseeds:
        left.append(f"   reseeded {view.reseeds}×")
    if view.note or view.stop_reason:
        left.append("   " + (view.note or view.stop_reason), "bold #f0902a")
    right = Text(f"trained {duration(view.training_s)}", "dim")
    return _spread(left, right, width)


def _cycle_line(view: View, width: int) -> Text:
    share = view.step_in_cycle / view.steps_in_cycle if view.steps_in_cycle else 0.0
    right = f"{view.step_in_cycle} of {view.steps_in_cycle} steps" if view.steps_in_cycle else first_thing(view)
    if view.phase == "waiting":
        right = f"{duration(view.waiting_left_s)} to the next attempt"
    elif view.cycle_left_s is not None:
        right += f", {duration(view.cycle_left_s)} left"
    return _bar_line("cycle", share, right, width, GOOD)


def first_thing(view: View) -> str:
    """What a run produces before its first cycle."""
    return view.kind.first_thing


def _step_line(view: View, width: int) -> Text:
    if view.step_elapsed_s is None:
        what = harmless(view.stage) or ("between two workers" if view.state == "running" else view.state)
        return _bar_line("step", 0.0, what, width, CALM)
    usual = view.step_median_s if view.role != "validate" else None  # a validation is no step
    share = view.step_elapsed_s / usual if usual else 0.0
    right = f"{harmless(view.stage)} {duration(view.step_elapsed_s)}"
    if usual is not None:
        right += f" of ~{duration(usual)}"
    return _bar_line("step", min(share, 1.0), right, width, CALM if share < 4 else "#f0902a")


def _bar_line(name: str, share: float, right: str, width: int, colour: str) -> Text:
    room = max(4, width - 6 - 2 - max(24, len(right)))
    done, rest = bar(share, room)
    line = Text(f"{name:<6}", "dim").append(done, colour).append(rest, "dim")
    return line.append("  ").append(right.rjust(width - 8 - room) if width >= 60 else right)


def _spread(left: Text, right: Text, width: int) -> Text:
    gap = width - left.cell_len - right.cell_len
    if gap < 2:
        return left
    return left.append(" " * gap).append_text(right)


# --- results -------------------------------------------------------------------------------------------------------


def scores(view: View, width: int, height: int) -> list[Text]:
    if not view.scores:
        return [Text("the first validation comes before the first cycle", "dim")]
    return score_table(view.scores, width)[:height]


def score_table(rows: Sequence[TaskScores], width: int) -> list[Text]:
    """The table of scores, without columns for metrics that this run does not measure."""
    missing = {
        name for name in ("sampled", "reward", "worked", "tokens") if all(getattr(r.last, name) is None for r in rows)
    }
    return table([column for name, column in _SCORE_COLUMNS if name not in missing], rows, width)


def _spark_of(name: str) -> Callable[[TaskScores, int], Text]:
    def cell(row: TaskScores, width: int) -> Text:
        values = [value for point in row.scores if (value := getattr(point, name)) is not None]
        high = 1.0 if name != "tokens" else max([1.0, *values])
        return Text(sparkline(values, width, 0.0, high), TASK_COLOURS.get(row.task, ""))

    return cell


def _last_of(name: str, words: Callable[[float | None], str], style: str = "") -> Callable[[TaskScores, int], Text]:
    return lambda row, _width: Text(words(getattr(row.last, name)), style)


def _change(row: TaskScores, _width: int) -> Text:
    if len(row.scores) < 2:
        return Text("")
    style = (GOOD if row.change > 0 else BAD) if row.is_certain else "dim"
    return Text(points(row.change), style)


def _interval(row: TaskScores, _width: int) -> Text:
    return Text(f"{row.last.low:.2f} – {row.last.high:.2f}", "dim")


def _tokens(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def _reward(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


_SCORE_COLUMNS: tuple[tuple[str, Column[TaskScores]], ...] = (
    ("", Column("", 9, lambda row, width: named(row.task, width))),
    ("", Column("greedy", 6, _last_of("greedy", score, "bold"))),
    ("", Column("95 %", 11, _interval, rank=5)),
    ("", Column("gain", 4, _change, rank=1, right=True)),
    ("", Column("", 5, _spark_of("greedy"), rank=4, flex=True)),
    ("sampled", Column("sampled", 7, _last_of("sampled", score), rank=2, right=True)),
    ("sampled", Column("", 5, _spark_of("sampled"), rank=6, flex=True)),
    ("reward", Column("reward", 6, _last_of("reward", _reward), rank=2, right=True)),
    ("worked", Column("worked", 6, _last_of("worked", percent), rank=3, right=True)),
    ("worked", Column("", 5, _spark_of("worked"), rank=7, flex=True)),
    ("tokens", Column("tokens", 6, _last_of("tokens", _tokens), rank=4, right=True)),
    ("tokens", Column("", 5, _spark_of("tokens"), rank=8, flex=True)),
)
"""(optional metric that the column needs, the column)."""


def accuracy_chart(view: View, width: int, height: int) -> list[Text]:
    """Mean over the tasks by step: greedy, sampled, worked share."""
    mean = next((row for row in view.scores if row.task == "mean"), None)
    rows, room = height - 2, width - 5
    if mean is None or rows < 3 or room < 10:
        return [Text("a curve appears with the second validation", "dim")][:height]
    curves = [_curve_points(mean.scores, name) for name in ("greedy", "sampled", "worked")]
    last_step = max(mean.last.step, mean.first.step + 1)
    top = _scale_top(max(value for curve in curves for _step, value in curve))
    cells = chart(curves, room, rows, (mean.first.step, last_step), (0.0, top))
    legend = Text(" " * 5)
    for (name, colour), curve in zip(CHART_COLOURS, curves, strict=True):
        if not curve:
            continue
        legend.append("● ", colour).append(f"{name}   ")
    lines = [legend]
    for number, row in enumerate(cells):
        mark = {0: f"{top:.2f}", rows // 2: f"{top / 2:.2f}", rows - 1: "0"}.get(number, "")
        line = Text(f"{mark:>4}│", "dim")
        for character, who in row:
            line.append(character, CHART_COLOURS[who][1] if who >= 0 else "")
        lines.append(line)
    right = f"step {mean.last.step}"
    axis = f"step {mean.first.step}"
    lines.append(Text(" " * 5 + axis + right.rjust(room - len(axis)), "dim"))
    return lines


def _scale_top(highest: float) -> float:
    """Round up to a quarter, so that the curve fills the chart and the scale rarely changes."""
    return min(1.0, max(0.25, math.ceil(highest * 4) / 4))


def _curve_points(points_: Sequence[Score], name: str) -> list[tuple[float, float]]:
    return [(point.step, value) for point in points_ if (value := getattr(point, name)) is not None]


# --- the machine ---------------------------------------------------------------------------------------------------


ALARMS = event_kinds.names(event_kinds.NOT_FINITE, event_kinds.OOM_RETRY, event_kinds.UNPARSED)


def events(view: View, width: int, height: int) -> list[Text]:
    """A line about memory and head, then the newest events that fit, newest last."""
    lines = [machine(view)]
    room = height - 1
    for event in view.events[-room:] if room > 0 else ():
        style = BAD if event.type in ALARMS else ""
        when = strftime("%H:%M:%S ", localtime(event.at))
        lines.append(Text(when, "dim").append(f"{event.type} ", style or "bold").append(event.text))
    return lines


def machine(view: View) -> Text:
    line = Text("worker ", "dim").append(size(view.worker_rss_bytes) if view.worker_pid else "none")
    line.append("  master ", "dim").append(size(view.master_rss_bytes) if view.master_rss_bytes else "none")
    if view.standby:
        line.append("  next worker ", "dim").append(view.standby)
    if view.head_path:
        line.append("  head ", "dim").append(f"step {view.head_step} {view.head_digest[:8]}")
    return line


def keys_line(keys: Sequence[tuple[str, str]], width: int) -> Text:
    """The keys and their actions, closer together and without the last ones on a narrow terminal."""
    line = Text(" " if width >= SMALL_WIDTH else "")
    needed = sum(len(key) + len(what) + 1 for key, what in keys) + line.cell_len
    gap = min(3, max(1, (width - needed) // len(keys)))
    for key, what in keys:
        label = key if needed + len(keys) <= width else key.replace("Ctrl+", "^")
        if line.cell_len + len(label) + len(what) + 1 > width:
            break
        line.append(label, "bold").append(f" {what}{' ' * gap}", "dim")
    return line


# --- a small terminal ----------------------------------------------------------------------------------------------


def small(view: View, width: int, height: int, keys: Sequence[tuple[str, str]] = KEYS) -> list[Text]:
    """`height` lines, one per fact, the most important first and the keys last."""
    lines = [_status_line(view, width), _cycle_line(view, width), _step_line(view, width)]
    if view.scores:
        lines += score_table(view.scores, width)
    finds_tasks = view.kind.finds_tasks
    for curve in view.rewards[-1:] if finds_tasks else view.signals[:1]:
        name, low = ("reward ", -1.0) if finds_tasks else ("rollouts right ", 0.0)
        spark = sparkline(curve.values, max(4, width - len(name) - 7), low, 1)
        lines.append(Text(name, "dim").append(spark).append(f" {curve.last:+.2f}" if low else f" {curve.last:.2f}"))
    lines += [Text(view.meter, "dim")] if view.meter else []
    lines.append(machine(view))
    lines += [Text(event.text) for event in view.events[-1:]]
    lines = lines[: max(1, height - 1)]
    lines += [Text()] * (height - 1 - len(lines))
    return [*lines, keys_line(keys, width)][:height]


@dataclass(frozen=True)
class Tile:
    title: str
    draw: Callable[[View, int, int], list[Text]]
    facts: tuple[str, ...]
    """Fields of View that it shows. It is redrawn only when one of them has changed."""


_TIMERS = (
    "state",
    "phase",
    "cycle",
    "max_cycles",
    "step",
    "failures",
    "reseeds",
    "note",
    "stop_reason",
    "training_s",
    "step_in_cycle",
    "steps_in_cycle",
    "cycle_left_s",
    "stage",
    "role",
    "step_elapsed_s",
    "step_median_s",
    "waiting_left_s",
)
_MACHINE = ("worker_pid", "worker_rss_bytes", "master_rss_bytes", "standby", "head_path", "head_step", "events")

TILES = {
    "header": Tile("", header, (*_TIMERS, "run", "profile")),
    "scores": Tile("held-out accuracy", scores, ("scores", "meter")),
    "chart": Tile("held-out, mean of the tasks", accuracy_chart, ("scores",)),
    "play": Tile("self-play", play, ("rewards", "worked", "tokens", "signals")),
    "data": Tile("buffers", data, ("buffers", "examples", "reading")),
    "signals": Tile("training", signals, ("signals",)),
    "example": Tile("newest task", example, ("example",)),
    "events": Tile("events", events, _MACHINE),
}
