"""Row 12 of the checklist: the weight of a token's loss."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.schema import Grpo
from tests.profiles.variants import with_variants
from workers.grpo.token_weights import masked_rollouts, token_weights, weights_of


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        pytest.param("token", [1 / 8, 1 / 8], id="12 token"),
        pytest.param("sequence", [1 / 4, 1 / 12], id="12 sequence"),
        pytest.param("constant", [1 / 20, 1 / 20], id="12 constant: 1 / (2 * longest)"),
    ],
)
def test_row_12_the_weights_of_rollouts_of_2_and_6_tokens(norm: Any, expected: list[float]) -> None:
    assert token_weights([2, 6], [True, True], norm=norm, longest=10) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("norm", "denominator", "expected"),
    [
        ("token", "kept", [1 / 2, 0]),
        ("token", "all", [1 / 8, 0]),
        ("sequence", "kept", [1 / 2, 0]),
        ("sequence", "all", [1 / 4, 0]),
        ("constant", "kept", [1 / 10, 0]),
        ("constant", "all", [1 / 20, 0]),
    ],
)
def test_a_rollout_that_is_left_out_weighs_nothing_and_counts_only_under_all(
    norm: Any, denominator: Any, expected: list[float]
) -> None:
    found = token_weights([2, 6], [True, False], norm=norm, denominator=denominator, longest=10)
    assert found == pytest.approx(expected, rel=1e-15)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.sampled_from(["token", "sequence"]))
def test_the_weights_of_all_tokens_sum_to_1(lengths: list[int], norm: Any) -> None:
    weights = token_weights(lengths, [True] * len(lengths), norm=norm)
    assert sum(length * weight for length, weight in zip(lengths, weights, strict=True)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("lengths", "kept", "said"),
    [
        ([2, 6], [False, False], "0 of 2 rollouts are kept"),
        ([0], [True], "without a token"),
        ([11], [True], "11 tokens is longer than the longest allowed"),
        ([2], [True, True], "2 of 1"),
    ],
)
def test_what_has_no_mean_is_refused(lengths: list[int], kept: list[bool], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        token_weights(lengths, kept, norm="constant", longest=10)


def test_the_profile_says_whether_tokens_without_a_gradient_count() -> None:
    both = [True, True]
    assert weights_of(Grpo(), [2, 6], [1, 3], both, 10) == [1 / 8, 1 / 8]
    assert weights_of(with_variants(Grpo, mask_norm="selected", entropy_mask="running"), [2, 6], [1, 3], both, 10) == [
        1 / 4,
        1 / 4,
    ]
    assert weights_of(with_variants(Grpo, norm="sequence", denominator="all"), [2, 6], [2, 6], [True, False], 10) == [
        1 / 4,
        0,
    ]


def test_a_cut_rollout_is_masked_unless_the_profile_keeps_it() -> None:
    assert masked_rollouts(Grpo(), ["stop", "length"]) == [False, True]
    assert masked_rollouts(Grpo(truncated="keep"), ["stop", "length"]) == [False, False]
