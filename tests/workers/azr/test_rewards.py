"""Rows R1 to R11 of the algorithm's checklist."""

from __future__ import annotations

import pytest

from workers.azr import rewards
from workers.tasks.judge import InductionScore, induction_score


@pytest.mark.parametrize(("successes", "expected"), [(0, -0.5), (1, 0.875), (2, 0.75), (4, 0.5), (7, 0.125), (8, -0.5)])
def test_r1_a_valid_proposal_earns_what_it_teaches(successes: int, expected: float) -> None:
    assert rewards.proposer_reward(successes, 8) == expected


@pytest.mark.parametrize(("successes", "expected"), [(0, 0), (1, 0.875), (2, 0.75), (4, 0.5), (7, 0.125), (8, 0)])
def test_r2_the_reward_of_unlearnable_tasks_is_a_knob(successes: int, expected: float) -> None:
    assert rewards.proposer_reward(successes, 8, zero_reward=0.0) == expected


def test_r3_a_valid_proposal_in_bad_wording_earns_as_little_as_an_invalid_one() -> None:
    assert rewards.proposer_reward(4, 8, is_well_formed=False) == rewards.INVALID == -1


def test_r5_the_solver_is_paid_for_right_and_wrong_and_malformed() -> None:
    cases = [(True, True), (True, False), (False, True)]
    paid = [rewards.solver_reward(is_well_formed=form, score=float(right)) for form, right in cases]
    assert paid == [1, -0.5, -1]


@pytest.mark.parametrize(
    ("kind", "four_of_five", "none"), [("binary", -0.5, -0.5), ("accuracy", 0.8, -0.5), ("if_one_correct", 1, -0.5)]
)
def test_r7_four_of_five_hidden_pairs(kind: InductionScore, four_of_five: float, none: float) -> None:
    scores = [induction_score(passed, 5, kind) for passed in (4, 0, 5)]
    assert [rewards.solver_reward(is_well_formed=True, score=score) for score in scores] == [four_of_five, none, 1]


@pytest.mark.parametrize(("successes", "n"), [(1, 1), (0, 0), (3, 2), (-1, 8)])
def test_a_rate_needs_two_rollouts_and_makes_sense(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="rollouts"):
        rewards.learnability(successes, n)
