"""Draws a step's rollouts in a thread, while the update of the step before computes its gradient.

`begin` comes when that update needs nothing but its gradient, `before_change` before a weight changes: both read the
same weights, so none is copied. From a copy of them, rollouts are drawn beside all of the update. What was drawn is a
file of each checkpoint, so a resumed run trains on the same rollouts as an unbroken one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from workers.cycle.cursor import Exhausted
from workers.cycle.rollout_file import Record

Draw = Callable[[], list[Record]]


class TimedStages:
    """Stages that are timed and not reported: those of a thread beside the main one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began


class _Saved(Struct):
    """step: the step of these rollouts; 0: there are none."""

    step: int = 0
    records: list[Record] | None = None


class Ahead:
    """The rollouts of the next step: planned, under way, or drawn. Registered with run.overlap.

    Without a plan, every method does nothing.
    """

    filename = "ahead.json"

    def __init__(self, stage: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()) -> None:
        """stage: told `rollout` while an update waits for what is under way."""
        self._stage = stage
        self._now = _Saved()
        self._draw: Draw | None = None
        """The plan, until it has been carried out."""
        self.reads_copy = False
        """Whether rollouts are drawn from a copy of the weights, which no update changes."""
        self._under_way: Future[list[Record]] | None = None
        self._thread = ThreadPoolExecutor(1, "ahead")
        """One for the life of the worker: processes that it starts may end with the thread that started them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def plan(self, step: int, draw: Draw) -> None:
        """`draw` gives the rollouts of `step`. It runs in another thread, and may run again if it fails."""
        self.clear()
        self._now, self._draw = _Saved(step), draw
        if self.reads_copy:
            self.begin()

    def begin(self) -> None:
        """Start what is planned, unless it is under way or was drawn."""
        if self._draw is not None and self._under_way is None:
            self._under_way = self._thread.submit(self._draw)

    def finish(self) -> None:
        """Wait for what is under way. Raises what the thread raised; `begin` then starts it again."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        try:
            if not under_way.done():
                with self._stage("rollout"):
                    wait([under_way])
            self._now.records = under_way.result()
        except Exhausted:
            pass  # the step finds out by itself
        finally:
            del under_way  # an error holds this frame, and must not hold itself
        self._draw = None

    def before_change(self) -> None:
        """Call it before the weights of an update change. As `finish`, unless rollouts are drawn from a copy."""
        if not self.reads_copy:
            self.finish()

    def wait(self) -> None:
        """The same after an error of the update, which will be repeated: one of the thread comes again then."""
        with suppress(Exception):
            self.finish()

    def complete(self) -> None:
        """Wait for what is planned; draw it if nothing has begun it, as where the update changed no weight."""
        self.begin()
        self.finish()

    def take(self, step: int) -> list[Record] | None:
        """The rollouts of `step`, once; None if they were not drawn."""
        found = self._now.records if self._now.step == step else None
        self.clear()
        return found

    def clear(self) -> None:
        """Forget plan and rollouts."""
        self.wait()
        self._now, self._draw = _Saved(), None

    def save(self, path: Path) -> None:
        assert self._under_way is None, "a checkpoint of rollouts that are under way"
        path.write_bytes(msgspec.json.encode(self._now))

    def load(self, path: Path) -> None:
        self._now = msgspec.json.decode(path.read_bytes(), type=_Saved)
