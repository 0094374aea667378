"""What curves are drawn over: steps, tokens or hours of training. (pure)"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.display.wording import duration
from orchestrator.report.svg import Area, Chart, Line, Points
from state.series import Thinned


class Axis(StrEnum):
    STEPS = "steps"
    TOKENS = "tokens"
    HOURS = "hours"

    @property
    def unit(self) -> str:
        """For one value under the pointer."""
        return {Axis.STEPS: "step", Axis.TOKENS: "tokens", Axis.HOURS: "h"}[self]


def place(value: float, axis: Axis) -> str:
    """A place on an axis for a person: `160 steps`, `1.2M tokens`, `3 h 20 m`."""
    return duration(value * 3600) if axis is Axis.HOURS else f"{short(value)} {axis}"


def short(value: float) -> str:
    """Three digits: `0.43`, `12.4k`, `1.2M`."""
    for limit, unit, sign in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / unit:.3g}{sign}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


@dataclass(frozen=True)
class Clock:
    """A run's tokens and hours after each step, linear between the ends of buckets."""

    steps: tuple[float, ...]
    tokens: tuple[float, ...]
    hours: tuple[float, ...]

    @classmethod
    def of(cls, series: Thinned) -> Clock:
        """series: from the run's first step on."""
        ends = tuple(float(edge - 1) for edge in series.edges[1:])
        hours = tuple(seconds / 3600 for seconds in series.seconds)
        return cls((0.0, *ends), (0.0, *map(float, series.tokens)), (0.0, *hours))

    def at(self, step: float, axis: Axis) -> float:
        """Where a step stands on an axis. What comes after the last known step stands there."""
        if axis is Axis.STEPS:
            return step
        values = self.tokens if axis is Axis.TOKENS else self.hours
        place = bisect_left(self.steps, step)
        if place == 0 or place == len(self.steps):
            return values[min(place, len(values) - 1)]
        below, above = self.steps[place - 1], self.steps[place]
        return values[place - 1] + (step - below) / (above - below) * (values[place] - values[place - 1])

    def end(self, axis: Axis) -> float:
        return self.at(self.steps[-1], axis)


def on_axis(chart: Chart, clocks: Sequence[Clock], axis: Axis) -> Chart:
    """A chart over steps, drawn over another axis. clocks: by the number of the run that a line belongs to."""

    def moved(points: Points, run: int) -> Points:
        return tuple((clocks[run].at(x, axis), y) for x, y in points)

    def area(one: Area) -> Area:
        return replace(one, low=moved(one.low, one.run), high=moved(one.high, one.run))

    def line(one: Line) -> Line:
        return replace(one, points=moved(one.points, one.run))

    if axis is Axis.STEPS:
        return chart
    return replace(chart, lines=tuple(map(line, chart.lines)), areas=tuple(map(area, chart.areas)), x_name=axis.unit)
