"""Retry generation with fewer rollouts side by side after an out-of-memory error, when no trainer handles it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import torch

from workers.failures import is_out_of_memory

T = TypeVar("T")


@runtime_checkable
class Resizable(Protocol):
    """An engine that can decode fewer rollouts side by side."""

    @property
    def max_rows(self) -> int: ...

    def set_rows(self, rows: int) -> None: ...

    def drop_cache(self) -> None:
        """Free the cache; the next call creates one of the size it needs."""
        ...


def with_fewer_rows(engine: object, work: Callable[[], T], warn: Callable[[str], None], least: int = 1) -> T:
    """The result of `work`, repeated with half the rollouts side by side after each out-of-memory error.

    Raises that error once `least` rows do not fit either, and at once for an engine that is not `Resizable`.
    """
    while True:
        try:
            return work()
        except RuntimeError as error:
            if not is_out_of_memory(error) or not isinstance(engine, Resizable) or engine.max_rows <= least:
                raise
            reason = str(error).splitlines()[0]
        # Outside the handler: its traceback holds what the next try needs the room of.
        engine.set_rows(max(least, -(-engine.max_rows // 2)))
        engine.drop_cache()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warn(f"out of memory: {engine.max_rows} concurrent rollouts from now on: {reason}")
