"""Judges programs by their tests, in the sandbox: many programs and many tests side by side.

A verdict that only the machine decided is none: it is never counted for or against a program.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from profiles.schema import Sandbox as SandboxKnobs
from workers.sandbox import Budget, Case, Limits, Result, Sandbox, Script, ScriptResult, Statements, Status
from workers.sandbox.inside.modules import PURE
from workers.sandbox.limits import limits_of
from workers.sandbox.literal import Rejected, parse_value, same
from workers.sandbox.server.protocols import outcome_of_call, outcome_of_script
from workers.sandbox.verdict import NOT_RUN
from workers.verifiers.unit_tests import Call, Pair, Tests, UnitTest

BATCH = 8
"""Statements or calls of one program that share a process; each runs the program anew."""
FIRST = 4
"""Tests of a program that run first, where one failure decides."""
TRIES = 2
"""Runs of a test that the wall clock or the sandbox's own failure decided."""
MOST_FATAL = 3
"""Tests that may end a program's process, by its time for example, until its other tests count as failed."""
LONGEST_REASON = 400
NO_PROGRAM = "no fenced block with a program"


class Limit(NamedTuple):
    """Of each test. seconds: of CPU."""

    seconds: float = 2.0
    memory_mb: int = 512

    @property
    def budget(self) -> Budget:
        """The wall clock is a generous safety net for busy machines, as in the code server."""
        return Budget(self.seconds, 3 * self.seconds + 5, self.memory_mb)


@dataclass(frozen=True)
class Graded:
    """How a program did. num_passed: of `num_tests`; only those that ran if `is_lost`."""

    num_passed: int
    num_tests: int
    reason: str = ""
    """Why the first failed test failed; empty if all passed."""
    is_lost: bool = False
    """The machine, not the program, decided a test that matters: there is no verdict."""

    @property
    def is_right(self) -> bool:
        return not self.is_lost and 0 < self.num_passed == self.num_tests

    @property
    def share(self) -> float:
        """Of the tests, that were passed; 0 if there are none. Not meaningful if `is_lost`."""
        return self.num_passed / self.num_tests if self.num_tests else 0.0


class _Outcome(NamedTuple):
    """Of one test. passed: None for no verdict."""

    passed: bool | None
    reason: str = ""
    is_fatal: bool = False
    """Whether the program's process had to be ended."""


def sandbox_for(knobs: SandboxKnobs, limit: Limit, lanes: int = 0) -> Sandbox:
    """A sandbox that runs tests with these limits. lanes: programs side by side; 0: as many as cores.

    Raises SandboxRefused if the machine lacks a layer that the profile requires.
    """
    limits = replace(limits_of(knobs), cpu_s=limit.seconds, memory_mb=limit.memory_mb, scripts=True)
    return Sandbox(limits, lanes or len(os.sched_getaffinity(0)))


def importable(limits: Limits) -> str:
    """The modules that programs may import, in words."""
    names = {name for name in (*PURE, *limits.importable) if not name.startswith("_")}
    return ", ".join(sorted(names, key=str.lower))


def judge_programs(
    sandbox: Sandbox, asked: Sequence[tuple[str | None, Tests]], limit: Limit, *, needs_all: bool = True
) -> list[Graded]:
    """How each program does in its tests, in order. A program that is None has failed them all.

    sandbox: with `Limits.scripts`. needs_all: one failed test makes the program wrong, so later ones may be skipped.
    Equal programs with equal tests are run once. Raises ValueError for a program without tests.
    """
    if any(not tests for _, tests in asked):
        raise ValueError("a program without tests cannot be judged")
    judging = {one: _Judging(one[0], one[1], needs_all) for one in asked if one[0] is not None}
    run = _Runner(sandbox, limit)
    for wave in (slice(0, FIRST), slice(FIRST, None)):
        run(list(judging.values()), wave)
    found = {key: one.graded(sandbox.limits) for key, one in judging.items()}
    return [found.get(one) or Graded(0, len(one[1]), NO_PROGRAM) for one in asked]


class _Judging:
    """A program, its tests, and the outcomes so far."""

    def __init__(self, program: str, tests: Tests, needs_all: bool) -> None:
        self.program, self.tests, self._needs_all = program, tests, needs_all
        self._outcomes: dict[int, _Outcome] = {}
        self._tries: Counter[int] = Counter()

    def add(self, at: int, outcome: _Outcome) -> None:
        self._tries[at] += 1
        self._outcomes[at] = outcome

    def left(self, wave: slice) -> list[list[int]]:
        """The tests of the wave that have to run, in lots that share a process.

        A test that ends its process takes the later ones of its lot with it. They cost a further run, not a verdict.
        """
        places = range(len(self.tests))[wave]
        if self._is_decided:
            return []
        lost = [at for at in places if self._passed(at) is None and 0 < self._tries[at] < TRIES]
        return [*_lots(self.tests, [at for at in places if at not in self._outcomes]), *([at] for at in lost)]

    @property
    def _is_decided(self) -> bool:
        outcomes = self._outcomes.values()
        has_failed = any(one.passed is False for one in outcomes)
        return (self._needs_all and has_failed) or sum(one.is_fatal for one in outcomes) >= MOST_FATAL

    def _passed(self, at: int) -> bool | None:
        return self._outcomes[at].passed if at in self._outcomes else None

    def graded(self, limits: Limits) -> Graded:
        count = sum(one.passed is True for one in self._outcomes.values())
        failed = min((at for at, one in self._outcomes.items() if one.passed is False), default=None)
        lost = min((at for at, one in self._outcomes.items() if one.passed is None), default=None)
        if lost is not None and (failed is None or not self._needs_all):
            return Graded(count, len(self.tests), f"no verdict: {self._reason(lost, limits)}", is_lost=True)
        reason = "" if failed is None else self._reason(failed, limits)
        return Graded(count, len(self.tests), reason)

    def _reason(self, at: int, limits: Limits) -> str:
        reason = f"test {at + 1} of {len(self.tests)}: {self._outcomes[at].reason}"[:LONGEST_REASON]
        if "is not available to programs" in reason:
            reason += f" (they may import {importable(limits)})"
        return reason


class _Runner:
    """Runs tests of many programs at the same time."""

    def __init__(self, sandbox: Sandbox, limit: Limit) -> None:
        self._sandbox, self._budget = sandbox, limit.budget

    def __call__(self, judging: Sequence[_Judging], wave: slice) -> None:
        """Run the tests of this wave, and again, each alone, those that gave no verdict."""
        while lots := [(one, lot) for one in judging for lot in one.left(wave)]:
            self._run(lots)

    def _run(self, lots: Sequence[tuple[_Judging, list[int]]]) -> None:
        whole = [(one, lot[0]) for one, lot in lots if isinstance(one.tests[lot[0]], Pair)]
        calls = [(one, lot) for one, lot in lots if not isinstance(one.tests[lot[0]], Pair)]
        found, printed = self._sandbox.run_many(
            [self._case(one.program, [one.tests[at] for at in lot]) for one, lot in calls],
            [self._script(one.program, one.tests[at]) for one, at in whole],
        )
        for (one, lot), results in zip(calls, found, strict=True):
            for at, result in zip(lot, results, strict=True):
                if not (result.status is Status.KILLED and result.message.startswith(NOT_RUN)):
                    one.add(at, _of_call(result, one.tests[at], self._budget))
        for (one, at), ended in zip(whole, printed, strict=True):
            one.add(at, _of_script(ended, one.tests[at], self._budget))

    def _case(self, program: str, tests: Sequence[UnitTest]) -> Case | Statements:
        first = tests[0]
        if isinstance(first, Call):
            inputs = tuple(one.input for one in tests if isinstance(one, Call))
            return Case(with_function(program, first.call), inputs, first.call, self._budget, is_ambient=True)
        return Statements(program, tuple(one for one in tests if isinstance(one, str)), self._budget)

    def _script(self, program: str, test: UnitTest) -> Script:
        assert isinstance(test, Pair)
        return Script(program, test.input.encode("utf-8", "surrogatepass"), self._budget, is_ambient=True)


def _lots(tests: Tests, places: Sequence[int]) -> list[list[int]]:
    """Tests that share a process: neighbours of one kind, at most BATCH; a script has one of its own."""
    lots: list[list[int]] = []
    for at in places:
        before = lots[-1] if lots else []
        if before and len(before) < BATCH and _group(tests[before[0]]) == _group(tests[at]) != "script":
            before.append(at)
        else:
            lots.append([at])
    return lots


def _group(test: UnitTest) -> str:
    if isinstance(test, Call):
        return f"call {test.call} {not test.input}"
    return "script" if isinstance(test, Pair) else "statement"


def with_function(program: str, name: str) -> str:
    """The program with a function of that name, where only its class `Solution` has one, as in LeetCode's form."""
    if re.search(rf"^(?:def {name}\b|{name}\s*=)", program, re.MULTILINE):
        return program
    if not re.search(r"^class Solution\b", program, re.MULTILINE):
        return program
    return f"{program}\n\ndef {name}(*given, **named):\n    return Solution().{name}(*given, **named)\n"


def _of_call(result: Result, test: UnitTest, budget: Budget) -> _Outcome:
    if result.is_undecided:
        return _Outcome(None, result.message)
    if result.status is not Status.OK:
        return _failed(result, result.error_type, result.message, budget)
    if isinstance(test, Call):
        if any(is_same(result.value or "", one) for one in (test.output, test.other) if one):
            return _Outcome(True)
        return _Outcome(False, f"{test.call}({_brief(test.input)}) returned {_brief(result.value or '')}")
    return _Outcome(outcome_of_call(result)[0])


def _of_script(result: ScriptResult, test: UnitTest, budget: Budget) -> _Outcome:
    assert isinstance(test, Pair)
    if result.is_undecided:
        return _Outcome(None, result.message)
    if outcome_of_script(result, test.output)[0]:
        return _Outcome(True)
    if result.status is Status.OK:
        return _Outcome(False, f"printed {_brief(result.stdout.decode(errors='replace').strip())!r}")
    last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    name, _, message = last.partition(": ")
    if result.status is Status.ERROR and name.isidentifier():
        return _failed(result, name, message, budget)
    return _failed(result, "", result.message or last, budget)


def _failed(result: Result | ScriptResult, error_type: str, message: str, budget: Budget) -> _Outcome:
    is_fatal = result.status in (Status.TIMEOUT, Status.KILLED)
    if result.status is Status.TIMEOUT:
        return _Outcome(False, f"more than {budget.cpu_s:g} s of CPU", is_fatal)
    if result.status is Status.MEMORY or error_type == "MemoryError":
        return _Outcome(False, f"more than {budget.memory_mb} MiB of memory", is_fatal)
    return _Outcome(
        False, ": ".join(one for one in (error_type or result.status.value, _brief(message)) if one), is_fatal
    )


def _brief(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def is_same(returned: str, expected: str) -> bool:
    """Whether two literals have the same value. A tuple equals a list: tests in JSON have no tuples."""
    try:
        return same(_listed(parse_value(returned)), _listed(parse_value(expected)))
    except Rejected:
        return False


def _listed(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_listed(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _listed(one) for key, one in value.items()}
    return value
