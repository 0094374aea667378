"""Thins the metrics of any number of steps to a few hundred buckets, each with minimum, mean and maximum. (pure)

A spike of one step in a million stays visible. Buckets hold equally many steps, a power of two. When the run outgrows
them, neighbours are merged, so that memory stays constant and a step is read once.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

MOST_BUCKETS = 512
MOST_METRICS = 400
"""Names beyond are left out: a reward function of one's own may invent any number."""
LARGEST = sys.float_info.max
DIGITS = 5
"""Significant digits of what is sent."""

Row = Mapping[str, Any]
"""Metrics of a step."""


class _Column:
    """One metric by bucket; a count of 0 means that no step of the bucket reports it."""

    def __init__(self, buckets: int) -> None:
        self.low = array("d", [math.inf]) * buckets
        self.high = array("d", [-math.inf]) * buckets
        self.total = array("d", [0.0]) * buckets
        self.count = array("q", [0]) * buckets

    def merge(self, bucket: int, values: Sequence[float]) -> None:
        self.low[bucket] = min(self.low[bucket], min(values))
        self.high[bucket] = max(self.high[bucket], max(values))
        self.total[bucket] += sum(values)
        self.count[bucket] += len(values)

    def clear(self, bucket: int) -> None:
        self.low[bucket], self.high[bucket], self.total[bucket], self.count[bucket] = math.inf, -math.inf, 0.0, 0

    def halve(self) -> None:
        """Merge pairs of neighbours into the first half."""
        half = len(self.low) // 2
        for one in range(half):
            left, right = 2 * one, 2 * one + 1
            self.low[one] = min(self.low[left], self.low[right])
            self.high[one] = max(self.high[left], self.high[right])
            self.total[one] = self.total[left] + self.total[right]
            self.count[one] = self.count[left] + self.count[right]
        for one in range(half, len(self.low)):
            self.clear(one)


class Series:
    """All metrics of a run's steps, which count from 1. most: number of buckets, even."""

    def __init__(self, most: int = MOST_BUCKETS) -> None:
        self.most = most
        self.width = 1
        """Steps in a bucket."""
        self.last = 0
        """Highest step so far."""
        self._columns: dict[str, _Column] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._columns)

    @property
    def buckets(self) -> int:
        """Buckets in use."""
        return -(-self.last // self.width)

    def bucket(self, step: int) -> int:
        return (step - 1) // self.width

    def reach(self, step: int) -> None:
        """Make room for `step`."""
        while step > self.most * self.width:
            for column in self._columns.values():
                column.halve()
            self.width *= 2
        self.last = max(self.last, step)

    def add(self, steps: Sequence[tuple[int, Row]]) -> None:
        """Steps in ascending order that were not added before."""
        if not steps:
            return
        self.reach(steps[-1][0])
        start = 0
        while start < len(steps):
            bucket, end = self.bucket(steps[start][0]), start
            while end < len(steps) and self.bucket(steps[end][0]) == bucket:
                end += 1
            self._merge(bucket, [row for _, row in steps[start:end]])
            start = end

    def replace(self, bucket: int, rows: Sequence[Row]) -> None:
        """All steps of a bucket, in place of what was known of it."""
        for column in self._columns.values():
            column.clear(bucket)
        self._merge(bucket, rows)

    def _merge(self, bucket: int, rows: Sequence[Row]) -> None:
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [value for row in rows if is_number(value := row.get(name, math.nan))]
            if values and (column := self._column(name)) is not None:
                column.merge(bucket, values)

    def _column(self, name: str) -> _Column | None:
        found = self._columns.get(name)
        if found is None and len(self._columns) < MOST_METRICS:
            found = self._columns[name] = _Column(self.most)
        return found

    def points(self, names: Sequence[str], first: int = 0) -> dict[str, dict[str, list[float | None]]]:
        """name -> mean, low and high of each bucket from `first` on; None where no step reports it.

        low and high are left out where a bucket has one step.
        """
        return {name: self._points(self._columns[name], first) for name in names if name in self._columns}

    def _points(self, column: _Column, first: int) -> dict[str, list[float | None]]:
        places = range(first, self.buckets)
        counts = column.count
        mean = [rounded(column.total[n] / counts[n]) if counts[n] else None for n in places]
        if self.width == 1:
            return {"mean": mean}
        low = [rounded(column.low[n]) if counts[n] else None for n in places]
        high = [rounded(column.high[n]) if counts[n] else None for n in places]
        return {"mean": mean, "low": low, "high": high}


def is_number(value: object) -> bool:
    """Whether it can be drawn: neither NaN nor infinite, no truth value, and no whole number beyond all floats."""
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST  # type: ignore[operator]


def rounded(value: float) -> float:
    """To DIGITS significant digits, whole where it is whole. A sum may be infinite, and stays so."""
    if math.isinf(value):
        return value
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.{DIGITS}g}")
