"""Rows R1 to R11 of the algorithm's checklist: what a proposal and an answer of self-play earn."""

from __future__ import annotations

from random import Random

import pytest

from profiles.schema import Azr
from workers.rewards.coin import coin
from workers.rewards.learnability import learnability
from workers.rewards.of_profile import INVALID, SELF_PLAY_COIN, WRONG, role_rewards_of
from workers.rewards.reward import Case, Estimate, Score, score
from workers.rollout.engine import Rollout
from workers.tasks.entry import make_entry
from workers.tasks.judge import Correctness, InductionScore, Judged, induction_score
from workers.tasks.validate_proposals import MALFORMED, REPEAT, Checked

ROLLOUT = Rollout((1,), (2,), (-1.0,), "stop")
DEFAULT = Azr()
ENTRY = make_entry("ded", "def f(a):\n    return a", ["1"], ["1"], step=1, source="selfplay")
VALID, KNOWN, BROKEN = Checked(ENTRY), Checked(ENTRY, REPEAT), Checked(None, MALFORMED)


def answered(worth: float, *, is_well_formed: bool = True) -> Score:
    judged = Judged(Correctness.CORRECT if worth == 1 else Correctness.WRONG, worth)
    return score(Case(ENTRY, "", ROLLOUT, judged, is_well_formed, 0.5, "task"), role_rewards_of(Azr()).solve)


def proposed(
    checked: Checked, successes: float = 0.0, n: int = 0, *, is_well_formed: bool = True, azr: Azr = DEFAULT
) -> Score:
    found = Estimate(checked, successes, n)
    return score(Case("ded", "", ROLLOUT, found, is_well_formed, 0.5, "proposal"), role_rewards_of(azr).propose)


@pytest.mark.parametrize(("successes", "expected"), [(0, -0.5), (1, 0.875), (2, 0.75), (4, 0.5), (7, 0.125), (8, -0.5)])
def test_r1_a_valid_proposal_earns_what_it_teaches(successes: int, expected: float) -> None:
    assert proposed(VALID, successes, 8) == Score(expected, {"format": 0, "learnability": expected, "repeat": 0})


@pytest.mark.parametrize(("successes", "expected"), [(0, 0), (1, 0.875), (2, 0.75), (4, 0.5), (7, 0.125), (8, 0)])
def test_r2_the_reward_of_unlearnable_tasks_is_a_knob(successes: int, expected: float) -> None:
    assert proposed(VALID, successes, 8, azr=Azr(proposer_zero_reward=0.0)).total == expected


def test_r3_a_valid_proposal_in_bad_wording_earns_as_little_as_an_invalid_one() -> None:
    nothing_besides = Score(-1, {"format": INVALID, "learnability": 0, "repeat": 0})
    assert proposed(VALID, 4, 8, is_well_formed=False) == nothing_besides
    assert proposed(BROKEN, is_well_formed=False) == nothing_besides
    assert proposed(KNOWN, is_well_formed=False) == nothing_besides


def test_a_known_proposal_earns_its_own_knob_unless_it_is_estimated_again() -> None:
    azr = Azr(repeat_reward=-0.25)
    assert proposed(KNOWN, azr=azr) == Score(-0.25, {"format": 0, "learnability": 0, "repeat": -0.25})
    assert proposed(KNOWN, 2, 8, azr=azr) == Score(0.75, {"format": 0, "learnability": 0.75, "repeat": 0})


def test_r5_the_solver_is_paid_for_right_and_wrong_and_malformed() -> None:
    assert answered(1) == Score(1, {"format": 0, "correct": 1})
    assert answered(0) == Score(-0.5, {"format": 0, "correct": WRONG})
    assert answered(1, is_well_formed=False) == Score(-1, {"format": INVALID, "correct": 0})


@pytest.mark.parametrize(
    ("kind", "four_of_five", "none"), [("binary", -0.5, -0.5), ("accuracy", 0.8, -0.5), ("if_one_correct", 1, -0.5)]
)
def test_r7_four_of_five_hidden_pairs(kind: InductionScore, four_of_five: float, none: float) -> None:
    scores = [induction_score(passed, 5, kind) for passed in (4, 0, 5)]
    assert [answered(worth).total for worth in scores] == [four_of_five, none, 1]


@pytest.mark.parametrize(("successes", "n"), [(1, 1), (0, 0), (3, 2), (-1, 8)])
def test_a_rate_needs_two_rollouts_and_makes_sense(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="rollouts"):
        learnability(successes, n)


def test_a_coin_pays_what_right_and_wrong_answers_earn() -> None:
    tossed = {coin(answered(0), Random(seed), SELF_PLAY_COIN).total for seed in range(20)}
    assert tossed == {answered(1).total, answered(0).total}
