"""Partitions work among ranks. (pure) The same arguments give the same partition on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

LEAST_GAIN = 0.01
"""Least relative reduction of the largest load that justifies another split: both halves re-read their shared part."""


def share_out(
    items: Sequence[Item], size: int, cost: Callable[[Item], float], halves: Callable[[Item], Sequence[Item]]
) -> list[list[Item]]:
    """Partition the items among `size` ranks at about equal cost.

    Assigns the costliest items first, each to the rank with the smallest load. Then splits items of the fullest rank
    in two while that reduces the largest load. halves: returns nothing for an item that cannot be split. With one rank,
    returns all items in their order.
    """
    if size == 1:
        return [list(items)]
    kept, shares = list(items), _dealt(items, size, cost)
    even = sum(map(cost, items)) / size
    while True:
        fullest = max(shares, key=lambda share: _load(share, cost))
        if _load(fullest, cost) <= (1 + LEAST_GAIN) * even:
            return shares
        alike = {cost(item): item for item in fullest}.values()
        trials = [[*(one for one in kept if one is not item), *parts] for item in alike if (parts := halves(item))]
        dealt = [(trial, _dealt(trial, size, cost)) for trial in trials]
        best, after = min(dealt, key=lambda pair: _fullest(pair[1], cost), default=(kept, shares))
        if _fullest(after, cost) > (1 - LEAST_GAIN) * _fullest(shares, cost):
            return shares
        kept, shares = best, after


def _dealt(items: Sequence[Item], size: int, cost: Callable[[Item], float]) -> list[list[Item]]:
    shares: list[list[Item]] = [[] for _ in range(size)]
    loads = [0.0] * size
    for item in sorted(items, key=lambda one: -cost(one)):
        rank = loads.index(min(loads))
        shares[rank].append(item)
        loads[rank] += cost(item)
    return shares


def _load(share: Sequence[Item], cost: Callable[[Item], float]) -> float:
    return sum(map(cost, share))


def _fullest(shares: Sequence[Sequence[Item]], cost: Callable[[Item], float]) -> float:
    return max(_load(share, cost) for share in shares)
