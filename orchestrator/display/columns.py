"""Tables that drop their least important columns when narrow and widen sparklines when wide. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rich.text import Text

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """cell(row, width) draws a field. rank: the highest is dropped first, 0 never. flex: may grow."""

    title: str
    width: int
    cell: Callable[[Row, int], Text]
    rank: int = 0
    flex: bool = False
    right: bool = False


def fit(columns: Sequence[Column[Row]], width: int) -> list[Column[Row]]:
    """The columns that fit into `width`, separated by spaces, with flexible ones widened to fill it."""
    kept = list(columns)
    while len(kept) > 1 and _width(kept) > width:
        worst = max(kept, key=lambda column: column.rank)
        if worst.rank == 0:
            break
        kept.remove(worst)
    spare, flexible = width - _width(kept), sum(column.flex for column in kept)
    if spare <= 0 or not flexible:
        return kept
    share, odd = divmod(spare, flexible)
    widened = []
    for column in kept:
        extra = share + (1 if column.flex and odd > 0 else 0) if column.flex else 0
        odd -= 1 if column.flex else 0
        widened.append(replace(column, width=column.width + extra))
    return widened


def _width(columns: Sequence[Column[Row]]) -> int:
    return sum(column.width for column in columns) + len(columns) - 1


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> list[Text]:
    """A title line and one line per row."""
    kept = fit(columns, width)
    lines = [_join([Text(column.title, "dim") for column in kept], kept)]
    lines += [_join([column.cell(row, column.width) for column in kept], kept) for row in rows]
    return lines


def _join(cells: Sequence[Text], columns: Sequence[Column[Row]]) -> Text:
    line = Text()
    for number, (cell, column) in enumerate(zip(cells, columns, strict=True)):
        cell.truncate(column.width)
        gap = " " * max(0, column.width - cell.cell_len)
        line.append(" " if number else "")
        line.append(gap if column.right else "").append_text(cell).append("" if column.right else gap)
    return line
