"""How sequences are laid side by side: whole, in few rows, with little padding, and never more than is planned for."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiles.footprint import work_of
from profiles.load import load_profile
from profiles.shapes import ARCHITECTURES, shape_of
from workers.models.packing import Unit, pack, rows_of, visible


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


def seen(rows: list[list[Unit]], width: int) -> Tensor:
    """The definition, token by token: [R, width, width]."""
    whose = [
        [(number, part) for number, unit in enumerate(row)
         for part, length in enumerate((len(unit.prompt_ids), *(len(ids) - 1 for ids in unit.completions)))
         for _ in range(length)]
        for row in rows
    ]  # fmt: skip
    padded = [row + [(-1, 0)] * (width - len(row)) for row in whose]

    def is_seen(row: list[tuple[int, int]], i: int, j: int) -> bool:
        return j <= i and row[i][0] == row[j][0] and row[j][1] in (0, row[i][1])

    return torch.tensor([[[is_seen(row, i, j) for j in range(width)] for i in range(width)] for row in padded])


units = some.builds(
    lambda prompt, lengths: Unit((1,) * prompt, tuple((1,) * one for one in lengths), tuple(range(len(lengths)))),
    some.integers(1, 6), some.lists(some.integers(1, 6), min_size=1, max_size=3),
)  # fmt: skip


@given(some.lists(some.lists(units, min_size=1, max_size=3), min_size=1, max_size=3), some.data())
def test_a_completion_sees_its_prompt_and_itself_alone(rows: list[list[Unit]], data: Any) -> None:
    segments = pack(rows).segments
    width = segments.shape[2]
    expected = seen(rows, width)[:, None]
    assert torch.equal(visible(segments), expected)
    begin = data.draw(some.integers(0, width - 1))
    end = data.draw(some.integers(begin + 1, width))
    assert torch.equal(visible(segments, begin, end), expected[:, :, begin:end, :end])


class Largest(TorchDispatchMode):
    """Of all tensors that are made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.elements = max(self.elements, *(one.numel() for one in tree_leaves(found) if isinstance(one, Tensor)), 0)
        return found


def test_what_packing_makes_grows_with_the_tokens_not_with_their_square() -> None:
    tokens, rows = 3000, 2
    row = [Unit((1,) * 1000, ((1,) * 1001,) * 2, (0, 1))]
    with Largest() as largest:
        made = pack([row] * rows)
    assert made.ids.shape == (rows, tokens)
    assert largest.elements == 2 * rows * tokens  # the segments
    each = [getattr(made, name) for name in made.__dataclass_fields__]
    # Ids and positions of 8 bytes, segments of 2 x 4; of completion tokens three numbers of 8 bytes.
    assert sum(one.numel() * one.element_size() for one in each) == 24 * rows * tokens + 24 * rows * 2002
