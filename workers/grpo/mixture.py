"""The order of a mixture: in each epoch every file has its share of the draws, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Literal

from workers.cycle.cursor import Cursor
from workers.rng import derive


def shares_of(weights: Sequence[float], draws: int) -> list[int]:
    """How many of `draws` each file has: its share, rounded by largest remainder. (pure)"""
    whole = sum(map(Fraction, weights))
    exact = [Fraction(weight) * draws / whole for weight in weights]
    taken = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda place: (taken[place] - exact[place], place))
    for place in by_rest[: draws - sum(taken)]:
        taken[place] += 1
    return taken


def epoch_order(sizes: Sequence[int], weights: Sequence[float], epoch: int, seed: int) -> list[int]:
    """Numbers of the problems of one epoch, which has as many draws as there are problems. (pure)

    sizes: problems of each file, which have adjacent numbers. A file goes on where the last epoch left it, in passes
    with an order of their own; so all its problems are drawn equally often, whatever its weight. Each argument alone
    decides, so a resumed run draws the same.
    """
    draws: list[int] = []
    begin = 0
    for file, (size, share) in enumerate(zip(sizes, shares_of(weights, sum(sizes)), strict=True)):
        orders: dict[int, list[int]] = {}
        for count in range(epoch * share, (epoch + 1) * share):
            turn, position = divmod(count, size)
            if turn not in orders:
                orders[turn] = list(range(begin, begin + size))
                Random(derive(seed, turn, "data order of a file", file)).shuffle(orders[turn])
            draws.append(orders[turn][position])
        begin += size
    Random(derive(seed, epoch, "data order")).shuffle(draws)
    return draws


class Mixture(Cursor):
    """A cursor over the draws of a mixture; its place is that of a cursor. weights: one for each file."""

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float], seed: int, at_end: Literal["reshuffle", "stop"]
    ) -> None:
        if not all(sizes):
            raise ValueError("a file without problems")
        super().__init__(sum(sizes), seed, at_end)
        self._sizes, self._weights = tuple(sizes), tuple(weights)
        self._known: tuple[int, list[int]] = (-1, [])

    def _order(self, epoch: int) -> list[int]:
        if self._known[0] != epoch:
            self._known = (epoch, epoch_order(self._sizes, self._weights, epoch, self.seed))
        return self._known[1]
