"""Length shaping: affects right answers only, and never puts one below a wrong answer."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from profiles.schema import Grpo, Profile, Sampling
from workers.grpo.collecting import Asker
from workers.grpo.judging import Slow
from workers.problems.problem import Problem
from workers.rewards.earned import case_of
from workers.rollout.engine import Rollout
from workers.suites.answer_format import VerbatimFormat


class Letters:
    """A tokenizer of characters."""

    def decode(self, ids: tuple[int, ...]) -> str:
        return "".join(map(chr, ids))


def paying(penalty: float) -> Grpo:
    return Grpo(rewards=("correct", "length"), reward_weights=(1.0, penalty)) if penalty else Grpo()


@pytest.mark.parametrize(
    ("response", "penalty", "reward"),
    [
        pytest.param("\\boxed{4}", 0.0, 1.0, id="it is off by default"),
        pytest.param("\\boxed{4}" + " " * 10, 0.5, 0.75, id="half of the longest costs half of it"),
        pytest.param("\\boxed{4}" + " " * 31, 0.9, 0.1, id="the longest right answer is still better than a wrong one"),
        pytest.param("\\boxed{5}" + " " * 11, 0.5, 0.0, id="a wrong answer is not shaped"),
    ],
)
def test_a_right_answer_pays_for_its_length(response: str, penalty: float, reward: float) -> None:
    profile = Profile(name="x", sampling=Sampling(max_completion_tokens=40), grpo=paying(penalty))
    nobody: Any = None
    asker = Asker(profile, VerbatimFormat(), Letters(), nobody, [Problem(0, 1, "2 + 2", "4")])  # type: ignore[arg-type]
    ids = tuple(map(ord, response)) + ((0,) if len(response) < 40 else ())
    case = asker.case(0, Rollout((1,), ids, (-1.0,) * len(ids), "stop"))
    row = asker.row(0, 0, case, Slow(), Random(0))
    assert row.reward == pytest.approx(reward)
    if penalty:
        assert -penalty * row.parts["length"] == pytest.approx(row.is_correct - row.reward)


def test_what_an_environment_says_is_no_length_of_the_answer() -> None:
    rollout = Rollout((1,), (5,) * 30, (-1.0,) * 10, "stop", is_own=(True,) * 10 + (False,) * 20)
    assert case_of(Grpo(), Problem(0, 3, "?", "4"), "\\boxed{4}", rollout, 40, None).share == 0.25
