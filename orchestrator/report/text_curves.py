"""Curves of runs as lines of characters: one block a metric, one row a run, over steps, tokens and hours. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.display.glyphs import BLOCKS
from orchestrator.report.axes import Axis, Clock, place, short
from orchestrator.report.svg import Points

WIDTH = 24
"""Characters of each curve; three stand side by side."""


@dataclass(frozen=True)
class TextCurve:
    """One metric of one run over steps."""

    run: str
    points: Points
    clock: Clock


def block(title: str, curves: Sequence[TextCurve]) -> str:
    """A title with the range, the ends of the three axes, and a row for each run. Empty without points."""
    values = [y for curve in curves for _, y in curve.points]
    if not values:
        return ""
    low, high = min(values), max(values)
    ends = {axis: max(curve.clock.end(axis) for curve in curves) for axis in Axis}
    name_width = max(len(curve.run) for curve in curves)
    heads = "  ".join(f"to {place(ends[axis], axis)}".ljust(WIDTH) for axis in Axis)
    lines = [f"{title}, {short(low)} to {short(high)}", f"  {'':<{name_width}}  {heads}".rstrip()]
    for curve in curves:
        cells = "  ".join(_cells(curve, axis, ends[axis], low, high) for axis in Axis)
        last = f"  {short(curve.points[-1][1])}" if curve.points else ""
        lines.append(f"  {curve.run:<{name_width}}  {cells}{last}".rstrip())
    return "\n".join(lines) + "\n"


def _cells(curve: TextCurve, axis: Axis, end: float, low: float, high: float) -> str:
    """Means of the points in each cell, the last value between points, and blank after the last one."""
    found: list[list[float]] = [[] for _ in range(WIDTH)]
    places = [min(WIDTH - 1, int(curve.clock.at(x, axis) / (end or 1.0) * WIDTH)) for x, _ in curve.points]
    for cell, (_, y) in zip(places, curve.points, strict=True):
        found[cell].append(y)
    cells, level = [], " "
    for cell, values in enumerate(found):
        if values:
            share = (sum(values) / len(values) - low) / ((high - low) or 1.0)
            level = BLOCKS[round(share * (len(BLOCKS) - 1))]
        cells.append(level if places and cell <= places[-1] else " ")
    return "".join(cells)
