"""The division of questions into batches and shares: all of them, once, whatever the numbers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from workers.evaluate.shares import batches_of, share_of

LENGTHS = st.lists(st.integers(0, 50), max_size=40)


@given(LENGTHS, st.integers(1, 9), st.integers(1, 12))
def test_the_shares_have_every_question_once(lengths: list[int], size: int, shards: int) -> None:
    questions = list(enumerate(lengths))
    batches = batches_of(questions, size, lambda one: one[1])
    shared = [one for number in range(shards) for batch in share_of(batches, number, shards) for one in batch]
    assert Counter(shared) == Counter(questions)


@given(LENGTHS, st.integers(1, 9), st.integers(1, 12))
def test_a_share_is_made_of_batches_of_the_whole_and_none_is_two_batches_larger_than_another(
    lengths: list[int], size: int, shards: int
) -> None:
    batches = batches_of(list(enumerate(lengths)), size, lambda one: one[1])
    shares = [share_of(batches, number, shards) for number in range(shards)]
    assert all(batch in batches for share in shares for batch in share)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_longest_come_first_and_equal_ones_stay_in_order() -> None:
    batches = batches_of(["aa", "bbb", "cc", "d", "eee"], 2, len)
    assert batches == [["bbb", "eee"], ["aa", "cc"], ["d"]]
