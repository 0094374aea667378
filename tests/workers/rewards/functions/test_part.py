"""The user's functions as parts of GRPO's reward: from cases to named values, or to the error that ends the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from tests.workers.rewards.functions.running import running
from workers.problems.problem import Problem
from workers.rewards.functions.part import FunctionPart
from workers.rewards.reward import Case, ProblemCase
from workers.rollout.engine import Rollout
from workers.verifiers.verify import Verdict

SOURCE = """
def facts_of_one(problem, completion, facts):
    if completion == "bad":
        return None
    told = [facts[name] for name in ("tokens", "finish_reason", "is_truncated", "is_correct", "is_well_formed")]
    return {"is_as_told": told == [2, "length", True, True, False], "level": problem.level}

def of_group(completions, completion_ids, answer, trainer_state, **columns):
    special = {"none": None, "bad": float("nan")}
    step = trainer_state.global_step
    rows = zip(completions, completion_ids, answer)
    return [special.get(one, len(ids) + step + (one == right)) for one, ids, right in rows]
"""


def case(text: str) -> ProblemCase:
    asked = Problem(0, 7, "2+2=", "4", columns={"level": 3}, source="sums.jsonl")
    rollout = Rollout((1,), (5, 6), (-1.0, -1.0), "length")
    return Case(asked, text, rollout, Verdict(True, "4", ""), False, 0.5, "problem 0")


def test_a_function_is_a_slow_part_of_its_own_name(tmp_path: Path) -> None:
    with running(tmp_path, SOURCE, "facts_of_one", "of_group") as runner:
        one, group = (FunctionPart(runner, number, lambda: {"global_step": 10}) for number in (0, 1))
        assert [(part.name, part.takes_groups) for part in (one, group)] == [
            ("facts_of_one", False),
            ("of_group", True),
        ]
        good, bad = one.submit([case("4"), case("bad")])
        assert good.result(60) == {"facts_of_one": 4.0, "facts_of_one/is_as_told": 1.0, "facts_of_one/level": 3.0}
        with pytest.raises(
            LonghaulError, match=r"the reward mine.py:facts_of_one failed on row 7 of sums.jsonl: .* None, not"
        ) as caught:
            bad.result(60)
        assert caught.value.exit_code == ExitCode.REWARD
        *fine, last = group.submit([case("4"), case("5"), case("none"), case("bad")])
        assert [future.result(60) for future in fine] == [{"of_group": 13.0}, {"of_group": 12.0}, {"of_group": 0.0}]
        with pytest.raises(LonghaulError, match="it returned nan for completion 4 of 4"):
            last.result(60)
