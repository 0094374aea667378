"""Lays out the tiles for the size of the terminal. (pure)"""

from __future__ import annotations

from dataclasses import dataclass

SMALL_WIDTH, SMALL_HEIGHT = 60, 20
"""Below either, the layout is one line per fact, without frames."""
WIDE, TALL = 110, 32
"""From both on, the layout has two columns and the chart."""


@dataclass(frozen=True)
class Place:
    """A tile and its size, including the frame."""

    tile: str
    width: int
    height: int


@dataclass(frozen=True)
class Band:
    """Columns side by side, each a stack of places. All stacks have equal height."""

    columns: tuple[tuple[Place, ...], ...]


def arrange(width: int, height: int, *, has_examples: bool = True) -> tuple[Band, ...]:
    """Bands from top to bottom that fill `width` x `height`. has_examples: the run finds tasks to show."""
    if width < SMALL_WIDTH or height < SMALL_HEIGHT:
        return (_row(Place("small", width, height)),)
    if width >= WIDE and height >= TALL:
        return _large(width, height, has_examples)
    return _medium(width, height, has_examples)


def _row(*places: Place) -> Band:
    return Band(tuple((place,) for place in places))


def _medium(width: int, height: int, has_examples: bool) -> tuple[Band, ...]:
    """One column. Tiles that do not fit are dropped from the bottom. 80 x 24 shows all but the newest task."""
    bands = [_row(Place("header", width, 5)), _row(Place("scores", width, 7))]
    left = height - 13  # header, scores, keys
    half = width // 2
    if left >= 6:
        bands.append(_row(Place("play", half, 6), Place("data", width - half, 6)))
        left -= 6
    if has_examples and left >= 11:
        example = min(10, left - 5)
        bands.append(_row(Place("example", width, example)))
        left -= example
    if left:
        bands.append(_row(Place("events" if left >= 3 else "gap", width, left)))
    return (*bands, _row(Place("keys", width, 1)))


def _large(width: int, height: int, has_examples: bool) -> tuple[Band, ...]:
    """Progress on top, results on the left, activity on the right."""
    body = height - 6  # header, keys
    left_width = width * 11 // 20
    events = max(6, body // 4)
    left = [
        Place("scores", left_width, 7),
        Place("chart", left_width, body - 7 - events),
        Place("events", left_width, events),
    ]
    right_width = width - left_width
    signals = min(8, max(0, body - 6 - 6 - 8)) if has_examples else body - 12
    signals = signals if signals >= 4 else 0
    right = [Place("play", right_width, 6), Place("data", right_width, 6)]
    right += [Place("signals", right_width, signals)] if signals else []
    right += [Place("example", right_width, body - 12 - signals)] if has_examples else []
    return _row(Place("header", width, 5)), Band((tuple(left), tuple(right))), _row(Place("keys", width, 1))
