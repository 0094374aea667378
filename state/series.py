"""Metrics over a range of steps, thinned to some points, so that a run of a million steps is read in a blink.

A point stands for a bucket of steps and has the mean, the lowest and the highest value. The columns of `steps` are
aggregated by SQLite over every step. Other metrics are JSON: where there are more than `ROWS_READ` steps, some of each
bucket are read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

from profiles.metrics import LOSS, REWARD, SECONDS, TOKENS

POINTS = 600
"""Enough for a chart of 1,400 pixels."""
ROWS_READ = 12_000
"""Up to so many steps every row is read; of more, so many. Each takes 20 µs."""
GOLDEN = 0.6180339887498949
"""Fractions of its multiples are spread evenly, so the steps that are read do not beat with the cycle's length."""
COLUMNS = (SECONDS.name, REWARD.name, LOSS.name, TOKENS.name)
"""Metrics with a column of their own."""


class Spread(NamedTuple):
    """One metric in one bucket."""

    mean: float
    low: float
    high: float
    num_steps: int
    """Steps that were read and reported it."""


@dataclass(frozen=True)
class Thinned:
    """Metrics over steps. Bucket n has the steps from `edges[n]` up to, not including, `edges[n + 1]`."""

    edges: tuple[int, ...]
    """One more than there are buckets; empty without steps."""
    every: int
    """Of the metrics without a column every Nth step was read; 1: all."""
    seconds: tuple[float, ...]
    """Of training since the run began, at the end of each bucket."""
    tokens: tuple[int, ...]
    """Completion tokens since the run began, at the end of each bucket."""
    metrics: dict[str, tuple[Spread | None, ...]]
    """Name -> a spread for each bucket; None where no step reported it."""

    @property
    def middles(self) -> list[float]:
        """The step in the middle of each bucket."""
        return [(first + end - 1) / 2 for first, end in pairwise(self.edges)]


def edges_of(first: int, last: int, points: int) -> tuple[int, ...]:
    """Edges of at most `points` buckets of equal size, up to one step, over the steps first to last. (pure)"""
    num_steps = max(0, last - first + 1)
    buckets = min(points, num_steps)
    return tuple(first + number * num_steps // buckets for number in range(buckets + 1)) if buckets else ()


def chosen(first: int, end: int, every: int) -> Iterator[int]:
    """One step of each `every` from `first` up to `end`, at a place that varies. (pure)"""
    for number, start in enumerate(range(first, end, every)):
        yield start + int(number * GOLDEN % 1 * min(every, end - start))


def extremes(points: Sequence[tuple[float, int]], most: int) -> list[tuple[float, int]]:
    """At most so many of (value, anything): the ends, and the lowest and the highest of each stretch between. (pure)"""
    if len(points) <= most:
        return list(points)
    inner, stretches, kept = points[1:-1], max(1, (most - 2) // 2), [points[0]]
    for number in range(stretches):
        part = range(number * len(inner) // stretches, (number + 1) * len(inner) // stretches)
        ends = {min(part, key=lambda place: inner[place][0]), max(part, key=lambda place: inner[place][0])}
        kept += [inner[place] for place in sorted(ends)]
    return [*kept, points[-1]]


class _Tally:
    """Sums of one metric in one bucket."""

    __slots__ = ("high", "low", "num_steps", "total")

    def __init__(self) -> None:
        self.num_steps, self.total, self.low, self.high = 0, 0.0, float("inf"), float("-inf")

    def add(self, num_steps: int, total: float, low: float, high: float) -> None:
        self.num_steps += num_steps
        self.total += total
        self.low, self.high = min(self.low, low), max(self.high, high)

    def spread(self) -> Spread | None:
        return Spread(self.total / self.num_steps, self.low, self.high, self.num_steps) if self.num_steps else None


Row = tuple[int, float | None, float | None, float | None, float | None, str]
"""(step, the columns, metrics as JSON)."""


def read_series(
    connection: sqlite3.Connection, metrics: Sequence[str], points: int, first: int, last: int, tail: Sequence[Row]
) -> Thinned:
    """Thin the trained steps from `first` to `last`, and those of `tail`, which come after them and count all.

    Raises sqlite3.Error.
    """
    edges, every = edges_of(first, last, points), max(1, -(-(last - first + 1) // ROWS_READ))
    inner = [name for name in metrics if name not in COLUMNS]
    found: dict[str, list[Spread | None]] = {name: [] for name in metrics}
    totals = dict(zip(_SUMMED, _totals_before(connection, first), strict=True))
    sums: dict[str, list[float]] = {name: [] for name in _SUMMED}
    for start, end in pairwise(edges):
        tallies = {name: _Tally() for name in (*_SUMMED, *metrics)}
        _add_columns(tallies, connection, start, end)
        if inner:
            for text in _metrics_of(connection, start, end, every):
                _add_metrics(tallies, inner, text)
        for step, *values, text in tail:
            if start <= step < end:
                for name, value in zip(COLUMNS, values, strict=True):
                    if name in tallies:
                        _add_value(tallies[name], value)
                _add_metrics(tallies, inner, text)
        for name in metrics:
            found[name].append(tallies[name].spread())
        for name in _SUMMED:
            totals[name] += tallies[name].total
            sums[name].append(totals[name])
    seconds, tokens = (sums[name] for name in _SUMMED)
    spreads = {name: tuple(one) for name, one in found.items()}
    return Thinned(edges, every, tuple(seconds), tuple(map(round, tokens)), spreads)


_SUMMED = (SECONDS.name, TOKENS.name)


def _totals_before(connection: sqlite3.Connection, step: int) -> tuple[float, float]:
    sql = f"SELECT total({_SUMMED[0]}), total({_SUMMED[1]}) FROM steps WHERE trained=1 AND step<?"
    seconds, tokens = connection.execute(sql, [step]).fetchone()
    return float(seconds), float(tokens)


def _add_columns(tallies: dict[str, _Tally], connection: sqlite3.Connection, start: int, end: int) -> None:
    """Over the index `steps_series` alone, which has all columns."""
    columns = [name for name in COLUMNS if name in tallies]
    wanted = ", ".join(f"count({name}), total({name}), min({name}), max({name})" for name in columns)
    sql = f"SELECT {wanted} FROM steps WHERE trained=1 AND step>=? AND step<?"
    row = connection.execute(sql, [start, end]).fetchone()
    for number, name in enumerate(columns):
        if row[4 * number]:
            tallies[name].add(*row[4 * number : 4 * number + 4])


def _metrics_of(connection: sqlite3.Connection, start: int, end: int, every: int) -> Iterator[str]:
    if every == 1:
        sql = "SELECT metrics FROM steps WHERE trained=1 AND step>=? AND step<?"
        yield from (text for (text,) in connection.execute(sql, [start, end]))
        return
    for step in chosen(start, end, every):
        sql = "SELECT metrics FROM steps WHERE trained=1 AND step=?"
        yield from (text for (text,) in connection.execute(sql, [step]))


def _add_metrics(tallies: dict[str, _Tally], names: Sequence[str], text: str) -> None:
    reported = json.loads(text)
    for name in names:
        _add_value(tallies[name], reported.get(name))


def _add_value(tally: _Tally, value: Any) -> None:
    """Skips what is no finite number."""
    if isinstance(value, int | float) and isfinite(value):
        tally.add(1, value, value, value)
