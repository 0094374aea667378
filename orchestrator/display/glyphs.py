"""Draws sparklines, bars and line charts with characters. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot of a braille cell (U+2800), by row from the top and column."""


def resample(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: means of equally long stretches, so that a long run fits on one line."""
    if width <= 0 or not values:
        return []
    n = len(values)
    if n <= width:
        return list(values)
    edges = [i * n // width for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def sparkline(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """Blocks scaled from `low` to `high` (default: the values' range), exactly `width` wide, newest at the right."""
    shown = resample([value for value in values if value == value], width)
    if not shown:
        return " " * max(width, 0)
    bottom = min(shown) if low is None else low
    top = max(shown) if high is None else high
    span = top - bottom if top - bottom > 1e-9 * max(abs(top), abs(bottom)) else 0.0  # means of equal values differ
    top_index = len(BLOCKS) - 1
    marks = [
        BLOCKS[min(top_index, max(0, round((value - bottom) / span * top_index)))] if span > 0 else BLOCKS[0]
        for value in shown
    ]
    return "".join(marks).rjust(width)


def bar(share: float, width: int) -> tuple[str, str]:
    """(done, rest) of a progress bar, together `width` wide, in steps of half a cell."""
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    full, half = divmod(halves, 2)
    done = "━" * full + ("╸" if half else "")
    return done, "─" * (width - len(done))


def chart(
    curves: Sequence[Sequence[tuple[float, float]]],
    width: int,
    height: int,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> list[list[tuple[str, int]]]:
    """Line charts in braille: `height` rows of `width` cells, each (character, index of the curve or -1).

    curves: points (x, y), sorted by x. If two curves share a cell, both show their dots in the later one's colour.
    """
    bits = [[0] * width for _ in range(height)]
    owner = [[-1] * width for _ in range(height)]
    (left, right), (bottom, top) = x_range, y_range
    across = (width * 2 - 1) / ((right - left) or 1.0)
    up = (height * 4 - 1) / ((top - bottom) or 1.0)
    for number, points in enumerate(curves):
        dots = [(round((x - left) * across), round((top - min(top, max(bottom, y))) * up)) for x, y in points]
        for column, row in _line(dots):
            if 0 <= column < width * 2 and 0 <= row < height * 4:
                bits[row // 4][column // 2] |= BRAILLE[row % 4][column % 2]
                owner[row // 4][column // 2] = number
    return [
        [(chr(0x2800 + bit) if bit else " ", who) for bit, who in zip(bit_row, owner_row, strict=True)]
        for bit_row, owner_row in zip(bits, owner, strict=True)
    ]


def _line(dots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every dot of the polyline through `dots`."""
    if not dots:
        return []
    drawn = [dots[0]]
    for (x0, y0), (x1, y1) in pairwise(dots):
        n = max(abs(x1 - x0), abs(y1 - y0), 1)
        drawn += [(x0 + round((x1 - x0) * i / n), y0 + round((y1 - y0) * i / n)) for i in range(1, n + 1)]
    return drawn
