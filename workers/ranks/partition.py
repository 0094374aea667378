"""How work is divided among ranks. (pure) The same arguments give the same division, on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def partition_passes(batches: Sequence[Item], rank: int, size: int, *, is_even: bool) -> list[tuple[Item, bool]]:
    """The micro-batches of one rank, and whether each counts.

    is_even: every rank gets as many, because a pass is made by all together; where batches run out, one is made again
    that does not count.
    """
    mine = [(batch, True) for batch in batches[rank::size]]
    passes = -(-len(batches) // size)
    if is_even and len(mine) < passes:
        mine.append((batches[0], False))
    return mine
