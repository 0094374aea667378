"""Slow parts of a reward: judged while others decode, once for each rollout, and never taken for a reward of 0."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

import pytest

from profiles.errors import ExitCode, LonghaulError
from workers.grpo.judging import Judging
from workers.problems.problem import Problem
from workers.rewards.earned import Slow
from workers.rewards.reward import Case, ProblemCase
from workers.rollout.engine import Rollout
from workers.verifiers.verify import Verdict


def rollout(number: int) -> Rollout:
    return Rollout((1,), (number,), (-1.0,), "stop")


def case_of(problem: int, one: Rollout) -> ProblemCase:
    asked = Problem(problem, problem + 1, "?", "1")
    return Case(asked, str(one.completion_ids[0]), one, Verdict(False, None, ""), False, 0.5, f"problem {problem}")


class Digits:
    """The number that a completion holds; raises for the refused ones."""

    name = "digits"

    def __init__(self, takes_groups: bool = False, refused: frozenset[str] = frozenset()) -> None:
        self.takes_groups, self._refused = takes_groups, refused
        self.seen: list[list[str]] = []
        self._pool = ThreadPoolExecutor(1)

    def check(self, columns: Collection[str]) -> None:
        pass

    def submit(self, cases: Sequence[ProblemCase]) -> list[Future[Mapping[str, float]]]:
        self.seen.append([case.text for case in cases])
        return [self._pool.submit(self._value, case.text) for case in cases]

    def _value(self, text: str) -> Mapping[str, float]:
        if text in self._refused:
            raise LonghaulError(f"it failed on {text}", kept="-", next_command="-", exit_code=ExitCode.REWARD)
        return {"digits": float(text)}


ANSWERS = [[rollout(3), rollout(4)], [rollout(5), rollout(6)]]


def judged(part: Digits, told: Sequence[int], on_error: Literal["stop", "skip"] = "stop") -> list[list[Slow]]:
    """The slow values of ANSWERS, of which the engine tells some by number, in this order."""
    flat = [one for group in ANSWERS for one in group]
    with Judging(case_of, [part], (0, 1), 2, on_error) as judging:
        assert judging.on_end is not None
        for number in told:
            judging.on_end(number, flat[number])
        return [[slow for _, slow in group] for group in judging.found(ANSWERS)]


@pytest.mark.parametrize("told", [(), (2, 0), (3, 1, 2, 0)])
def test_each_rollout_is_judged_once_whatever_the_engine_has_told(told: Sequence[int]) -> None:
    part = Digits()
    assert [[slow.values["digits"] for slow in group] for group in judged(part, told)] == [[3, 4], [5, 6]]
    assert sorted(text for texts in part.seen for text in texts) == ["3", "4", "5", "6"]


def test_a_part_that_takes_groups_gets_a_problem_s_rollouts_together_and_in_order() -> None:
    part = Digits(takes_groups=True)
    judged(part, (3, 1, 2, 0))
    assert part.seen == [["5", "6"], ["3", "4"]]


def test_a_rollout_that_another_engine_drew_again_is_judged_again() -> None:
    part = Digits()
    with Judging(case_of, [part], (0, 1), 2, "stop") as judging:
        assert judging.on_end is not None
        judging.on_end(0, replace(rollout(3), completion_ids=(9,)))
        found = judging.found(ANSWERS)
    assert found[0][0][1].values == {"digits": 3.0}


def test_a_failure_ends_the_step_or_marks_its_rollout_as_the_profile_says() -> None:
    refused = frozenset({"4"})
    with pytest.raises(LonghaulError, match="it failed on 4"):
        judged(Digits(refused=refused), ())
    found = judged(Digits(refused=refused), (1,), on_error="skip")
    assert found[0] == [Slow({"digits": 3.0}), Slow(failure="it failed on 4")]


def test_without_slow_parts_the_engine_is_told_nothing() -> None:
    with Judging(case_of, [], (0, 1), 2, "stop") as judging:
        assert judging.on_end is None
        assert [[slow for _, slow in group] for group in judging.found(ANSWERS)] == [[Slow(), Slow()], [Slow(), Slow()]]
