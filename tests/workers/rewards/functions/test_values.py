"""What a function may return, and what is said of everything else."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

from workers.rewards.functions.values import NoReward, of_group, of_one


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (0.5, 0.5),
        (2, 2.0),
        (True, 1.0),
        (False, 0.0),
        (numpy.float32(0.5), 0.5),
        (numpy.bool_(True), 1.0),
        (numpy.array(0.5), 0.5),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
    ],
)
def test_a_number_of_any_library_is_a_reward(returned: Any, value: float) -> None:
    assert of_one("f", returned) == {"f": value}
    assert of_group("f", [returned], 1) == [{"f": value}]


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ("0.5", r"it returned '0.5' \(str\), not a number"),
        (None, "it returned None, not a number"),
        (math.nan, "it returned nan; a reward must be finite"),
        (-math.inf, "it returned -inf; a reward must be finite"),
        (10**400, "which is no number: int too large"),
        ([1.0], r"it returned \[1.0\] \(list\), not a number"),
        (numpy.ones(2), "which is no number"),
        (1j, "not a number"),
        ({}, "a dict of 0 parts; 1 to 20"),
        ({"a": None}, "it returned None for 'a', not a number"),
        ({3: 1.0}, r"a dict with the key 3 \(int\); a part needs a short name"),
    ],
)
def test_everything_else_is_refused_for_one_rollout(returned: Any, why: str) -> None:
    with pytest.raises(NoReward, match=why):
        of_one("f", returned)


def test_a_dict_of_parts_counts_as_its_sum_and_shows_each_part() -> None:
    assert of_one("f", {"right": True, "short": -0.25}) == {"f": 0.75, "f/right": 1.0, "f/short": -0.25}


def test_none_of_a_group_means_that_the_function_does_not_apply() -> None:
    assert of_group("f", [1.0, None], 2) == [{"f": 1.0}, {"f": 0.0}]


def test_arrays_and_generators_are_lists() -> None:
    for returned in (numpy.array([0.0, 1.0]), (one for one in (0.0, 1.0))):
        assert of_group("f", returned, 2) == [{"f": 0.0}, {"f": 1.0}]


def test_one_bad_value_of_a_group_fails_its_rollout_alone() -> None:
    first, second, third = of_group("f", [1.0, math.nan, "x"], 3)
    assert first == {"f": 1.0}
    assert second == "it returned nan for completion 2 of 3; a reward must be finite"
    assert third == "it returned 'x' (str) for completion 3 of 3, not a number"


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ([1.0], "it returned 1 rewards for 2 completions"),
        ([], "it returned 0 rewards for 2 completions"),
        (1.0, r"it returned 1.0 \(float\); a list with a number for each completion was expected"),
        (None, "it returned None; a list"),
        ("ab", r"it returned 'ab' \(str\); a list"),
    ],
)
def test_a_group_needs_one_value_for_each_completion(returned: Any, why: str) -> None:
    with pytest.raises(NoReward, match=why):
        of_group("f", returned, 2)
