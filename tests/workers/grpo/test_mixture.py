"""A mixture's order: shares are exact in every epoch, no problem of a file is preferred, a resume draws the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from workers.cycle.cursor import Cursor, Exhausted
from workers.grpo.mixture import Mixture, epoch_order, shares_of


@pytest.mark.parametrize(
    ("weights", "draws", "shares"),
    [([2, 1], 9, [6, 3]), ([1, 1], 5, [3, 2]), ([0.7, 0.3], 10, [7, 3]), ([1, 1, 1], 2, [1, 1, 0]), ([5], 3, [3])],
)
def test_shares_follow_the_weights_by_largest_remainder(weights: list[float], draws: int, shares: list[int]) -> None:
    assert shares_of(weights, draws) == shares


def test_each_epoch_draws_by_weight_and_goes_on_within_each_file() -> None:
    sizes, weights = [4, 8], [2, 1]
    epochs = [epoch_order(sizes, weights, epoch, seed=3) for epoch in range(4)]
    assert [sum(number < 4 for number in order) for order in epochs] == [8, 8, 8, 8]
    counts = Counter(number for order in epochs for number in order)
    assert [counts[number] for number in range(12)] == [8] * 4 + [2] * 8
    assert len({tuple(order) for order in epochs}) == 4 and epochs[1] == epoch_order(sizes, weights, 1, seed=3)


def test_a_resumed_mixture_draws_what_an_unbroken_one_does_across_the_end_of_an_epoch(tmp_path: Path) -> None:
    def read(cursor: Cursor, count: int) -> list[int]:
        numbers, cursor.place = cursor.peek(count)
        return numbers

    unbroken, first, second = (Mixture([3, 5], [1, 3], 7, "reshuffle") for _ in range(3))
    expected = read(unbroken, 5) + read(unbroken, 9)
    found = read(first, 5)
    first.save(tmp_path / first.filename)
    second.load(tmp_path / first.filename)
    assert found + read(second, 9) == expected


def test_a_mixture_that_stops_ends_after_one_epoch() -> None:
    cursor = Mixture([3, 5], [1, 3], 7, "stop")
    numbers, cursor.place = cursor.peek(20)
    assert len(numbers) == 8
    with pytest.raises(Exhausted):
        cursor.peek(1)
    with pytest.raises(ValueError, match="a file without problems"):
        Mixture([3, 0], [1, 3], 7, "stop")
