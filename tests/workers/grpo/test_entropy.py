"""Row 22 of the checklist: which tokens keep their gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiles.schema import Grpo
from tests.profiles.variants import with_variants
from workers.grpo.entropy import EntropyMask, quantile, select_tokens

ONE_TO_TEN = torch.arange(1.0, 11.0)


def kept(entropies: list[float] | torch.Tensor, lengths: list[int] | None = None, **knobs: Any) -> list[int]:
    values = torch.as_tensor(entropies, dtype=torch.float32)
    return select_tokens(values, lengths or [len(values)], **knobs).mask.nonzero().flatten().tolist()


def test_row_22_half_of_1_to_10() -> None:
    found = select_tokens(ONE_TO_TEN, [10], kind="percentile", keep=0.5)
    assert (found.threshold, found.share) == (5.5, 0.5)
    assert found.mask.tolist() == [False] * 5 + [True] * 5


@pytest.mark.parametrize(
    ("entropies", "keep", "threshold", "expected"),
    [
        pytest.param([1, 2, 3, 4, 5], 0.5, 3.0, [2, 3, 4], id="a value at the quantile is kept"),
        pytest.param([1, 2, 2, 2, 3], 0.5, 2.0, [1, 2, 3, 4], id="ties at the quantile are all kept"),
        pytest.param([2, 2, 2, 2], 0.25, 2.0, [0, 1, 2, 3], id="nothing but ties"),
        pytest.param([0, 0, 0, 1], 0.25, 0.25, [3], id="between two values"),
        pytest.param([3, 1, 2], 1.0, 1.0, [0, 1, 2], id="all"),
        pytest.param([7], 0.2, 7.0, [0], id="one token"),
        # 1 - 0.7 in floats is a little more than 0.3: the fourth of 11 values would be lost.
        pytest.param(list(range(11)), 0.7, 3.0, [3, 4, 5, 6, 7, 8, 9, 10], id="a share that floats miss"),
        pytest.param(list(range(11)), 0.2, 8.0, [8, 9, 10], id="the paper's share"),
    ],
)
def test_row_22_percentile(entropies: list[float], keep: float, threshold: float, expected: list[int]) -> None:
    assert quantile(torch.tensor(entropies, dtype=torch.float32), keep) == threshold
    assert kept(entropies, kind="percentile", keep=keep) == expected


def test_row_22_threshold_keeps_what_is_over_it() -> None:
    assert kept([0.5, 0.6, 0.4], kind="threshold", threshold=0.5) == [1]


def test_off_keeps_everything_that_has_a_weight() -> None:
    assert kept(ONE_TO_TEN, [4, 6], kind="off", eligible=[False, True]) == [4, 5, 6, 7, 8, 9]


def test_row_22_min_tokens_of_each_rollout() -> None:
    # The first rollout is sure of itself throughout, and keeps its two highest all the same.
    found = kept([0.1, 0.3, 0.2, 5, 6, 7], [3, 3], kind="percentile", keep=0.5, min_tokens=2)
    assert found == [1, 2, 3, 4, 5]


def test_row_22_min_tokens_of_equal_entropies_are_the_earlier_ones() -> None:
    assert kept([0.0] * 4 + [9.0] * 4, [4, 4], kind="threshold", threshold=1, min_tokens=2) == [0, 1, 4, 5, 6, 7]


def test_row_22_a_rollout_shorter_than_min_tokens_keeps_all() -> None:
    assert kept([0, 0, 9], [2, 1], kind="threshold", threshold=1, min_tokens=10) == [0, 1, 2]


def test_row_22_what_has_no_weight_is_neither_kept_nor_counted() -> None:
    values = torch.tensor([100.0, float("nan"), 1, 2, 3])
    found = select_tokens(values, [2, 3], kind="percentile", keep=0.5, min_tokens=5, eligible=[False, True])
    assert found.mask.tolist() == [False, False, True, True, True]
    assert (found.threshold, found.share) == (2.0, 1.0)


def test_nothing_eligible_keeps_nothing() -> None:
    found = select_tokens(ONE_TO_TEN, [10], kind="percentile", eligible=[False])
    assert (found.mask.any().item(), found.threshold, found.share) == (False, None, 0.0)


def test_the_share_is_of_tokens_that_count() -> None:
    assert select_tokens(ONE_TO_TEN, [5, 5], kind="threshold", threshold=8, eligible=[False, True]).share == 0.4


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_an_entropy_that_is_not_finite_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        kept([1.0, wrong], kind="percentile")


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="rollouts of 9 tokens"):
        select_tokens(ONE_TO_TEN, [9], kind="percentile")


def test_arguments_are_not_changed() -> None:
    values = ONE_TO_TEN.clone()
    select_tokens(values, [5, 5], kind="percentile", min_tokens=3)
    assert torch.equal(values, ONE_TO_TEN)


ROWS = st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), min_size=1, max_size=6), min_size=1, max_size=6)


@given(ROWS, st.permutations(range(6)), st.sampled_from([0.2, 0.5, 0.7]), st.integers(0, 3))
def test_row_22_the_order_of_rollouts_in_the_update_changes_nothing(
    rows: list[list[float]], order: list[int], keep: float, min_tokens: int
) -> None:
    def masks(of: list[list[float]]) -> list[list[bool]]:
        flat = torch.tensor([value for row in of for value in row])
        found = select_tokens(flat, [len(row) for row in of], kind="percentile", keep=keep, min_tokens=min_tokens)
        return [part.tolist() for part in found.mask.split([len(row) for row in of])]

    order = [place for place in order if place < len(rows)]
    assert masks([rows[place] for place in order]) == [masks(rows)[place] for place in order]


@given(ROWS, st.sampled_from([0.2, 0.5, 0.7, 1.0]))
def test_at_least_the_share_is_kept(rows: list[list[float]], keep: float) -> None:
    flat = torch.tensor([value for row in rows for value in row])
    found = select_tokens(flat, [len(row) for row in rows], kind="percentile", keep=keep)
    assert found.share >= keep - 1 / len(flat)
    assert flat[found.mask].min() >= flat[~found.mask].max() if (~found.mask).any() else True


def test_running_begins_with_the_first_update_and_moves_a_twentieth_of_the_way() -> None:
    mask = EntropyMask(Grpo(entropy_mask="running", entropy_keep=0.5, entropy_min_tokens=0))
    assert mask.select(ONE_TO_TEN, [10]).threshold == 5.5
    assert mask.select(ONE_TO_TEN + 10, [10]).threshold == pytest.approx(0.95 * 5.5 + 0.05 * 15.5)
    before = mask.threshold
    assert mask.select(ONE_TO_TEN, [10], eligible=[False]).share == 0
    assert mask.threshold == before


def test_row_37_a_running_threshold_survives_a_checkpoint_to_the_last_bit(tmp_path: Path) -> None:
    grpo = Grpo(entropy_mask="running", entropy_min_tokens=0)
    unbroken, resumed = EntropyMask(grpo), EntropyMask(grpo)
    unbroken.select(ONE_TO_TEN / 3, [10])
    unbroken.save(tmp_path / unbroken.filename)
    resumed.load(tmp_path / resumed.filename)
    later = ONE_TO_TEN.sqrt()
    assert unbroken.select(later, [10]).threshold == resumed.select(later, [10]).threshold
    assert unbroken.threshold == resumed.threshold


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({}, list(range(10))),
        ({"entropy_mask": "percentile", "entropy_keep": 0.2}, [8, 9]),
        ({"entropy_mask": "percentile", "entropy_keep": 0.2, "entropy_min_tokens": 4}, [6, 7, 8, 9]),
        ({"entropy_mask": "threshold", "entropy_threshold": 8.5}, [8, 9]),
    ],
)
def test_the_profile_says_the_mask(knobs: dict[str, Any], expected: list[int]) -> None:
    mask = EntropyMask(with_variants(Grpo, **{"entropy_min_tokens": 0, **knobs}))
    assert mask.select(ONE_TO_TEN, [10]).mask.nonzero().flatten().tolist() == expected
