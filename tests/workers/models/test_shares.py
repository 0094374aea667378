"""How rollouts are divided among ranks before they are packed: all of them once, about as much to each."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.models.packing import Batch, Unit, micro_batches, passes_together, shares_of, units_of

LENGTHS = st.tuples(st.integers(1, 40), st.lists(st.integers(1, 60), min_size=1, max_size=6))


def units_with(groups: list[tuple[int, list[int]]], row_tokens: int = 128) -> list[Unit]:
    """Of each group a prompt of so many tokens, and completions of so many."""
    prompts = [(number,) * prompt for number, (prompt, lengths) in enumerate(groups) for _ in lengths]
    return units_of(prompts, [(7,) * length for _, lengths in groups for length in lengths], row_tokens)


def members(units: list[Unit]) -> list[int]:
    return sorted(member for unit in units for member in unit.members)


def units_in(batch: Batch) -> list[Unit]:
    return [unit for row in batch for unit in row]


def tokens(units: list[Unit]) -> int:
    return sum(unit.tokens for unit in units)


@given(st.lists(LENGTHS, max_size=12), st.integers(1, 8))
def test_every_rollout_is_read_by_one_rank_with_its_own_prompt(groups: list[tuple[int, list[int]]], size: int) -> None:
    units = units_with(groups)
    shares = shares_of(units, size)
    assert len(shares) == size and members([unit for share in shares for unit in share]) == members(units)
    read = {
        member: (unit.prompt_ids, ids)
        for unit in units
        for member, ids in zip(unit.members, unit.completions, strict=True)
    }
    for unit in (unit for share in shares for unit in share):
        for member, ids in zip(unit.members, unit.completions, strict=True):
            assert read[member] == (unit.prompt_ids, ids)


@given(st.lists(LENGTHS, min_size=1, max_size=12), st.integers(1, 6), st.integers(1, 8))
def test_passes_that_all_make_together_are_as_many_for_each_and_no_larger_than_allowed(
    groups: list[tuple[int, list[int]]], size: int, rollouts: int
) -> None:
    units = units_with(groups)
    together = passes_together(units, size, rollouts, 128)
    assert all(len(passes) == size for passes in together)
    counted = [units_in(batch) for passes in together for batch, counts in passes if counts]
    assert members([unit for batch in counted for unit in batch]) == members(units)
    for batch in counted:
        assert len(batch) == 1 or sum(len(unit.members) for unit in batch) <= rollouts


def test_one_rank_has_everything_as_it_came() -> None:
    units = units_with([(9, [3, 4]), (2, [8])])
    assert shares_of(units, 1) == [units]
    assert [[batch for batch, _ in passes] for passes in passes_together(units, 1, 2, 128)] == [
        [batch] for batch in micro_batches(units, 2, 128)
    ]


def test_no_rollouts_are_no_passes() -> None:
    assert shares_of([], 3) == [[], [], []] and passes_together([], 3, 4, 128) == []


def test_a_group_is_halved_only_where_that_takes_from_the_fullest_rank() -> None:
    halved, whole = units_with([(10, [40, 40])]), units_with([(100, [2, 2])])
    assert [tokens(share) for share in shares_of(halved, 2)] == [49, 49]  # else 88 and none
    assert [len(share) for share in shares_of(whole, 2)] == [1, 0]  # 102 and none, else 101 each
    assert [len(share) for share in shares_of(units_with([(100, [2, 2]), (100, [2, 2])]), 2)] == [1, 1]


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("is_together", [False, True])
def test_uneven_answers_keep_ranks_busy(size: int, is_together: bool) -> None:
    """16 groups of 8 answers, most short and some long: tokens of a rank's passes beside those that it waits for."""
    draws = Random(1)
    groups = [
        (draws.randint(100, 300), [min(1024, int(draws.lognormvariate(0, 0.6) * 400)) for _ in range(8)])
        for _ in range(16)
    ]
    units = units_with(groups, 4096)
    if is_together:
        waited = sum(
            max(tokens(units_in(one)) for one, _ in passes) for passes in passes_together(units, size, 8, 4096)
        )
    else:
        waited = max(map(tokens, shares_of(units, size)))
    assert tokens(units) / size / waited > (0.8 if is_together else 0.95)
