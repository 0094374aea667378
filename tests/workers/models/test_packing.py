"""How sequences are laid side by side: whole, in few rows, with little padding, and never more than is planned for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from profiles.footprint import work_of
from profiles.load import load_profile
from profiles.shapes import ARCHITECTURES, shape_of
from workers.models.packing import Unit, rows_of


def units_of(lengths: list[int]) -> list[Unit]:
    """Each of so many tokens."""
    return [Unit((1,) * (length - 1), ((1, 2),), (number,)) for number, length in enumerate(lengths)]


def tokens_of(rows: list[list[Unit]]) -> list[int]:
    return [sum(unit.tokens for unit in row) for row in rows]


def test_rows_are_about_as_long_as_each_other() -> None:
    assert tokens_of(rows_of(units_of([70, 70, 70, 70]), 256)) == [140, 140]
    assert sorted(tokens_of(rows_of(units_of([90, 60, 50, 40, 30]), 140))) == [130, 140]


def test_where_evening_out_makes_the_longest_row_longer_the_first_fit_stays() -> None:
    assert sorted(tokens_of(rows_of(units_of([3, 3, 2, 2, 2]), 6))) == [6, 6]


@given(some.lists(some.integers(2, 60), min_size=1, max_size=9), some.integers(1, 200))
def test_each_sequence_is_in_one_row_and_no_row_is_too_long(lengths: list[int], row_tokens: int) -> None:
    rows = rows_of(units_of(lengths), row_tokens)
    assert sorted(number for row in rows for unit in row for number in unit.members) == list(range(len(lengths)))
    assert all(rows) and max(tokens_of(rows)) <= max(row_tokens, *lengths, 0)


@given(
    some.integers(1, 8), some.lists(some.floats(0.05, 1.0), min_size=8, max_size=8),
    some.integers(1, 40), some.integers(2, 40), some.integers(1, 200),
)  # fmt: skip
def test_the_planner_expects_no_fewer_tokens_than_rows_and_their_padding_have(
    count: int, shares: list[float], prompt: int, completion: int, row_tokens: int
) -> None:
    knobs = {
        "sampling.max_prompt_tokens": prompt, "sampling.max_completion_tokens": completion,
        "optimizer.micro_batch_size": count, "optimizer.row_tokens": row_tokens,
    }  # fmt: skip
    profile = load_profile("azr-0.5b", [f"{name}={value}" for name, value in knobs.items()]).profile
    longest = prompt + completion
    for lengths in ([longest] * count, [max(2, int(share * longest)) for share in shares[:count]]):
        rows = rows_of(units_of(lengths), row_tokens)
        expected = work_of(profile, shape_of(ARCHITECTURES["qwen2.5-0.5b"]))
        assert len(rows) * max(tokens_of(rows)) <= expected.tokens
        assert max(tokens_of(rows)) <= expected.width
