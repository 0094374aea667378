"""An answer inside thoughts does not count, in training or in validation."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from profiles.schema import Profile
from tests.workers.grpo.test_length_penalty import Letters
from workers.grpo.collecting import Asker
from workers.grpo.judging import Slow
from workers.problems.problem import Problem
from workers.rollout.engine import Rollout
from workers.suites.answer_format import BoxedFormat


@pytest.mark.parametrize(
    ("response", "reward"),
    [("4 it is, \\boxed{4}", 0.0), ("so</think> \\boxed{4}", 1.0), ("\\boxed{4}</think> it is", 0.0)],
    ids=["thoughts that do not end", "an answer after them", "none after them"],
)
def test_thoughts_that_the_template_opened_hold_no_answer_as_in_a_validation(response: str, reward: float) -> None:
    answer_format = BoxedFormat("boxed-chat", lambda text: f"<user>{text}<assistant><think>\n")
    nobody: Any = None
    asker = Asker(Profile(name="x"), answer_format, Letters(), nobody, [Problem(0, 1, "2 + 2", "4")])  # type: ignore[arg-type]
    ids = (*map(ord, response), 0)
    case = asker.case(0, Rollout((1,), ids, (-1.0,) * len(ids), "stop"))
    row = asker.row(0, 0, case, Slow(), Random(0))
    assert row.reward == reward
    assert (answer_format.answer("maths", response) == "4") == bool(reward)
