"""Parts of a reward: each has a name, their sum is what a rollout earns."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from profiles.schema import Grpo
from workers.problems.problem import Problem
from workers.rewards.coin import coin
from workers.rewards.of_profile import grpo_rewards_of
from workers.rewards.reward import Case, Score, score
from workers.rewards.verifier import Verifier
from workers.rollout.engine import Rollout
from workers.verifiers.answers import is_formatted
from workers.verifiers.verify import judge


def case(gold: str, text: str, *, truncated: bool = False, lenient: bool = False, share: float = 0.5) -> Case:
    rollout = Rollout((1,), (2,), (-1.0,), "length" if truncated else "stop")
    verdict = judge(gold, text, truncated=truncated, lenient=lenient)
    is_well_formed = is_formatted(text, truncated=truncated)
    return Case(Problem(0, 1, "?", gold), text, rollout, verdict, is_well_formed, share, "problem 0")


def scored(asked: Case, grpo: Grpo) -> Score:
    rewards = grpo_rewards_of(grpo)
    return score(asked, rewards.parts, list(rewards.weights.values()))


@pytest.mark.parametrize(
    ("gold", "response", "truncated", "expected"),
    [
        ("7", r"so</think>\boxed{7}", False, 1.25),
        ("7", r"so</think>\boxed{8}", False, 0.25),
        ("7", "the answer is 7", False, 1.0),
        ("7", r"so</think>\boxed{7}", True, 1.0),
        ("7", "7", False, 0.0),
    ],
)
def test_a_reward_is_for_being_right_and_a_little_for_the_form(
    gold: str, response: str, truncated: bool, expected: float
) -> None:
    asked = case(gold, response, truncated=truncated)
    assert scored(asked, Grpo(rewards=("correct", "format"), reward_weights=(1.0, 0.25))).total == expected
    assert scored(asked, Grpo()).total == expected // 1
    assert scored(case("7", "7 or 8", lenient=True), Grpo()).total == 0.0


def test_each_part_is_told_under_its_name() -> None:
    grpo = Grpo(rewards=("correct", "format", "length"), reward_weights=(1.0, 0.25, 0.5))
    found = scored(case("7", r"so</think>\boxed{7}"), grpo)
    assert found == Score(1.0, {"correct": 1.0, "format": 1.0, "length": -0.5})


def test_a_coin_decides_in_place_of_the_parts_and_leaves_them_told() -> None:
    found = scored(case("7", r"\boxed{7}"), Grpo())
    tossed = [coin(found, Random(seed)) for seed in range(20)]
    assert {one.total for one in tossed} == {0.0, 1.0} and all(one.parts == found.parts for one in tossed)


def test_a_part_that_is_not_finite_is_refused_by_name() -> None:
    class Endless:
        name = "endless"

        def __call__(self, case: Case) -> float:
            return inf

    with pytest.raises(ValueError, match="reward/endless is inf for the problem 0"):
        score(case("7", "7"), [Endless()])


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two parts of the reward have the name 'correct'"):
        score(case("7", "7"), [Verifier(), Verifier()])
