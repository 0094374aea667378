"""The part `tests`: what a rollout's program earns, side by side, and never for a failure of the machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from profiles.errors import LonghaulError
from profiles.schema import Sandbox as SandboxKnobs
from tests.workers.verifiers.test_programs import Failing
from workers.problems.reader import Problem
from workers.rewards.reward import Case, ProblemCase
from workers.rewards.tests import CodeTests, Judge, program_in
from workers.rollout.engine import Rollout
from workers.verifiers.programs import sandbox_for
from workers.verifiers.verify import Verdict

KNOBS = SandboxKnobs(allow_weak=True)
PART = CodeTests(time_s=0.5, memory_mb=128, lanes=2)
TESTS = json.dumps(["assert f(1) == 2", "assert f(2) == 4"])
RIGHT, HALF, WRONG = (f"Here:\n```python\ndef f(x):\n    return {value}\n```" for value in ("2 * x", "x + 1", "0"))
ROLLOUT = Rollout((1,), (2,), (-1.0,), "stop")


def case(text: str, gold: str = TESTS, has_tests: bool = True) -> ProblemCase:
    problem = Problem(4, 5, "Write f.", gold, has_tests)
    return Case(problem, text, ROLLOUT, Verdict(False, None, ""), False, 0.5, "problem 4")


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with PART.judge(KNOBS) as one:
        yield one


def test_a_step_is_judged_at_once_and_in_order(judge: Judge) -> None:
    cases = [case(text) for text in (WRONG, RIGHT, HALF, "no program", RIGHT)]
    assert judge.judge_many(cases) == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert judge.graded_many(cases)[2].reason == "test 2 of 2: AssertionError"


def test_with_partial_the_share_of_tests_counts() -> None:
    with replace(PART, partial=True).judge(KNOBS) as judge:
        assert judge.judge_many([case(RIGHT), case(HALF), case(WRONG)]) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("work [P] f [P]def f(x): pass", "def f(x): pass"),
        ("def f(x): pass", "def f(x): pass"),
        ("<think>[P]a</think>b", "b"),
        ("<think>[P]a", None),
        ("work [P] ", None),
    ],
)
def test_a_mark_may_stand_before_a_program_in_place_of_a_fence(text: str, found: str | None) -> None:
    assert program_in(text, "[P]") == found


def test_a_program_after_its_mark_is_tested() -> None:
    with replace(PART, after="<prog>").judge(KNOBS) as judge:
        assert judge.judge_many([case("2 * x<prog>def f(x): return 2 * x"), case("def f(x): return x")]) == [1.0, 0.0]


def test_rollouts_are_submitted_as_they_end(judge: Judge) -> None:
    first = judge.submit([case(RIGHT)])
    others = judge.submit([case(HALF), case(WRONG)])
    assert [dict(one.result(30)) for one in (*first, *others)] == [
        {"tests": 1.0, "tests_passed": 1.0},
        {"tests": 0.0, "tests_passed": 0.5},
        {"tests": 0.0, "tests_passed": 0.0},
    ]


def test_a_problem_with_an_answer_earns_nothing_here(judge: Judge) -> None:
    assert judge.judge_many([case(RIGHT), case("18", gold="18", has_tests=False)]) == [1.0, 0.0]


def test_a_rollout_whose_verdict_was_lost_has_no_reward() -> None:
    failing: Any = Failing(sandbox_for(KNOBS, PART.limit, 1), 2, is_lost=True)
    failing.close = failing._sandbox.close
    with Judge(PART, failing) as judge:
        (future,) = judge.submit([case(RIGHT)])
        with pytest.raises(LonghaulError, match="the tests of problem 4 gave no verdict: no verdict: test 1 of 2"):
            future.result(30)
        assert judge.judge_many([case(RIGHT)]) == [1.0]
        failing._times = 2
        assert judge.judge_many([case(RIGHT)]) == [None]


def test_data_without_tests_is_refused_before_anything_is_judged(judge: Judge) -> None:
    judge.check({"answer", "tests"})
    with pytest.raises(LonghaulError, match="no row of the data has tests"):
        judge.check({"answer"})


def test_a_closed_judge_takes_no_more() -> None:
    judge = PART.judge(KNOBS)
    judge.close()
    with pytest.raises(RuntimeError, match="closed"):
        judge.submit([case(RIGHT)])


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"time_s": 0}, "time_s = 0 must"), ({"memory_mb": 0}, "memory_mb = 0 must"), ({"lanes": -1}, "lanes = -1 must")],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CodeTests(**options)
