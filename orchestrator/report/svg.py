"""Draws line charts as inline SVG, coloured by the page's style sheet. (pure)"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from orchestrator.report.escaping import text

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 28
"""Margins around the plot, with room for axis labels."""

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Line:
    """name: for the legend. style: CSS class for colour and dashes. points: (x, y), sorted by x."""

    name: str
    style: str
    points: Points
    run: int = 0
    """Which of the runs on the page it belongs to."""


@dataclass(frozen=True)
class Area:
    """A band between two curves, such as an interval."""

    style: str
    low: Points
    high: Points
    run: int = 0


@dataclass(frozen=True)
class Chart:
    title: str
    note: str
    lines: tuple[Line, ...]
    areas: tuple[Area, ...] = ()
    y_range: tuple[float, float] | None = None
    """None fits the lines."""
    unit: str = ""
    x_name: str = "step"
    """What one value of the x axis is."""


LARGEST = 1e300
"""Axes end here: the difference of two larger numbers may be none."""


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """About `most` round numbers that span `low` to `high`."""
    if not (math.isfinite(low) and math.isfinite(high)):
        low = high = low if math.isfinite(low) else 0.0
    low, high = (max(-LARGEST, min(one, LARGEST)) for one in (low, high))
    if high <= low:
        high = low + max(1.0, abs(low) / 1e6)
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def number(value: float) -> str:
    """A short axis label: `0.25`, `12k`, `1.5M`."""
    for limit, unit, sign in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / unit:g}{sign}"
    return f"{value:g}"


@dataclass(frozen=True)
class Scale:
    """Maps data to pixels."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / ((self.x_high - self.x_low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        inside = min(self.y_high, max(self.y_low, value))
        return TOP + (self.y_high - inside) / ((self.y_high - self.y_low) or 1.0) * (HEIGHT - TOP - BOTTOM)

    def path(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def scale_of(chart: Chart) -> tuple[Scale, list[float], list[float]]:
    """(scale, x ticks, y ticks) of a chart with at least one point."""
    every = [point for line in chart.lines for point in line.points]
    every += [point for area in chart.areas for point in (*area.low, *area.high)]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    y_ticks = nice_ticks(*(chart.y_range or (min(ys), max(ys))))
    x_ticks = [tick for tick in nice_ticks(min(xs), max(xs), 6) if min(xs) <= tick <= max(xs)]
    return Scale(min(xs), max(xs), y_ticks[0], y_ticks[-1]), x_ticks, y_ticks


def draw(chart: Chart, key: str) -> str:
    """The <svg> of a chart, or a note if it has no points. key: name of the chart in the page's data."""
    if not any(line.points for line in chart.lines):
        return '<p class="none">nothing was measured yet</p>'
    scale, x_ticks, y_ticks = scale_of(chart)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(chart.title)}" data-chart="{escape(key)}">'
    ]
    for tick in y_ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{number(tick)}</text>')
    for tick in x_ticks:
        parts.append(f'<text class="tick mid" x="{scale.x(tick):.1f}" y="{HEIGHT - 8}">{number(tick)}</text>')
    for area in chart.areas:
        outline = scale.path(area.high + tuple(reversed(area.low)))
        parts.append(f'<polygon class="band {escape(area.style)}" points="{outline}"/>')
    for line in chart.lines:
        parts.append(_line(line, scale))
    parts.append(f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" x1="0" x2="0" visibility="hidden"/></svg>')
    return "".join(parts)


def _line(line: Line, scale: Scale) -> str:
    style = escape(line.style)
    if len(line.points) == 1:
        (x, y) = line.points[0]
        return f'<circle class="dot {style}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3"/>'
    return f'<polyline class="line {style}" points="{scale.path(line.points)}"/>'
