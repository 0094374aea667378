"""Fills the series of one run from its store, a little at a time, so that a page of a million steps opens at once.

First one step of each bucket is looked up by its index. Then the buckets are read whole, the newest first, in pieces
small enough that nobody waits and that SQLite's snapshot is never held for long. New steps are added as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from orchestrator.web.series import Row, Series
from state.reader import Reader

PIECE = 2048
"""Steps that are read at once, about 20 ms of work."""
OPEN_STEPS = 4096
"""Steps beyond the head that are shown at most: the newest."""

Mark = tuple[Any, ...]
"""Tells one row of `steps` from another of the same step."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Filling:
    """The series of committed steps. Not for several threads at once."""

    def __init__(self) -> None:
        self.epoch = 0
        """Counts how often the run went back behind steps that were already read; what was sent before is then void."""
        self._begin()

    def _begin(self) -> None:
        self.series = Series()
        self._mark: Mark | None = None
        self._rough: list[int] = []
        """First steps of the buckets of which only one step was read, the newest last, in buckets of `_width`."""
        self._width = 1

    @property
    def share(self) -> float:
        """How much of the run was read whole."""
        last = self.series.last
        return 1.0 if not last else max(0.0, 1.0 - len(self._rough) * self._width / last)

    def follow(self, reader: Reader) -> None:
        """Add what was committed since the last call. Reads at most PIECE steps whole; `refine` reads the rest."""
        if self._mark is not None and reader.step_mark(self.series.last) != self._mark:
            self.epoch += 1
            self._begin()
        newest = reader.last_trained()
        if newest - self.series.last > PIECE:
            self._sample(reader, newest)
        else:
            self.series.add(_decoded(reader.trained_between(self.series.last + 1, newest)))
        if newest > 0:
            self.series.reach(newest)
            self._mark = reader.step_mark(newest)

    def _sample(self, reader: Reader, newest: int) -> None:
        """One step of each bucket, from scratch."""
        self.epoch += 1
        self._begin()
        self.series.reach(newest)
        self._width = self.series.width
        self._rough = list(range(1, newest + 1, self._width))
        for first in self._rough:
            self.series.add(_decoded(reader.trained_between(first, first)))
        self.series.reach(newest)

    def refine(self, reader: Reader) -> bool:
        """Read one more piece whole; whether there is more to do."""
        budget = PIECE
        while self._rough and budget > 0:
            # The series may have grown since: what a bucket was may be half a bucket now, read with its neighbour.
            first = self._rough[-1]
            bucket = self.series.bucket(first)
            start = bucket * self.series.width + 1
            end = min(start + self.series.width - 1, self.series.last)
            self.series.replace(bucket, [row for _, row in _decoded(reader.trained_between(start, end))])
            while self._rough and self._rough[-1] >= start:
                self._rough.pop()
            budget -= end - start + 1
        return bool(self._rough)

    def points(self, reader: Reader, names: Sequence[str], key: str, first: int) -> dict[str, Any]:
        """Buckets with the steps beyond the head. key, first: of the reply that the caller has; only newer ones follow.

        The reply's `settled` is the first bucket that may still change: the next call's `first`, with its `key`.
        """
        ahead = _decoded(reader.open_steps(OPEN_STEPS))
        shown = _with(self.series, ahead) if ahead else self.series
        now = f"{self.epoch}.{shown.width}.{len(self._rough)}"
        begin = min(max(0, first), shown.buckets) if key == now else 0
        return {
            "key": now,
            "width": shown.width,
            "first": begin,
            "last": shown.last,
            "head": self.series.last,
            "settled": self.series.last // shown.width,  # a bucket with open steps in it may change
            "read": round(self.share, 3),
            "lines": shown.points(names, begin),
        }


def _with(series: Series, ahead: Sequence[tuple[int, Row]]) -> Series:
    """A copy of the series with further steps."""
    import copy

    more = copy.deepcopy(series)
    more.add(ahead)
    return more


def _decoded(rows: Sequence[tuple[int, str]]) -> list[tuple[int, Row]]:
    """A step whose metrics are no JSON object reports nothing."""
    found: list[tuple[int, Row]] = []
    for step, text in rows:
        try:
            found.append((step, _decode(text)))
        except msgspec.MsgspecError:
            found.append((step, {}))
    return found
