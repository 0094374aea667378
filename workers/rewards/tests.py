"""The part that rewards a program for its tests: that of the last fenced block, or after a mark, run in the sandbox.

A rollout whose tests gave no verdict, because the machine failed, never counts as one that failed them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import isfinite
from threading import Condition, Thread
from typing import ClassVar, Self

from profiles.errors import ExitCode, LonghaulError
from profiles.rewards import TESTS
from profiles.schema import Sandbox as SandboxKnobs
from workers.rewards.reward import ProblemCase
from workers.sandbox import Sandbox
from workers.tasks.prompts.response import OPEN, last_program
from workers.verifiers.programs import Graded, Limit, judge_programs, sandbox_for
from workers.verifiers.unit_tests import Tests, read_tests

NAME = TESTS
PASSED = "tests_passed"
"""Beside the part's value: the share of tests passed; 1 for a right program."""


@dataclass(frozen=True)
class CodeTests:
    """The options. Its `judge` computes the part."""

    partial: bool = False
    """True: the reward is the share of tests passed; False: 1 for a program that passes all, else 0."""
    time_s: float = 2.0
    """CPU seconds of each test."""
    memory_mb: int = 512
    """Address space of each test, in MiB."""
    lanes: int = 0
    """Programs that run side by side; 0: as many as cores."""
    after: str = ""
    """A mark before the program, for models that write no fences; a completion without it is a program as a whole."""
    name: ClassVar[str] = NAME

    def __post_init__(self) -> None:
        if not (isfinite(self.time_s) and self.time_s > 0):
            raise ValueError(f"time_s = {self.time_s:g} must be above 0")
        if self.memory_mb < 1:
            raise ValueError(f"memory_mb = {self.memory_mb} must be at least 1")
        if self.lanes < 0:
            raise ValueError(f"lanes = {self.lanes} must be at least 0")

    @property
    def limit(self) -> Limit:
        return Limit(self.time_s, self.memory_mb)

    def judge(self, knobs: SandboxKnobs) -> Judge:
        """Start a sandbox with the profile's layers and modules. Raises SandboxRefused."""
        return Judge(self, sandbox_for(knobs, self.limit, self.lanes))


class Judge:
    """Judges rollouts in batches: all that wait when the last batch is done. A context manager; it owns the sandbox.

    As a slow part of the reward, `submit` returns at once.
    """

    name: ClassVar[str] = NAME
    takes_groups: ClassVar[bool] = False

    def __init__(self, part: CodeTests, sandbox: Sandbox) -> None:
        """sandbox: with `Limits.scripts`; closed at the end."""
        self._part, self._sandbox = part, sandbox
        self._waiting: list[tuple[ProblemCase, Future[Mapping[str, float]]]] = []
        self._changed = Condition()
        self._is_closed = False
        self._thread = Thread(target=self._work, name=NAME, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what waits, let the current batch end, and end the sandbox."""
        with self._changed:
            self._is_closed = True
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._changed.notify()
        self._thread.join()
        self._sandbox.close()

    def check(self, columns: Collection[str]) -> None:
        """Raises LonghaulError (INPUT) if no problem has tests. columns: those that some problems have."""
        if NAME not in columns:
            raise LonghaulError(
                "the part `tests` of the reward has nothing to judge by: no row of the data has tests",
                kept="everything; nothing was trained",
                next_command="name a file whose rows have tests in data.tasks   (docs/code-with-tests.md)",
                exit_code=ExitCode.INPUT,
            )

    def submit(self, cases: Sequence[ProblemCase]) -> list[Future[Mapping[str, float]]]:
        """A future for each case: the value of the part, and the share of tests passed. A lost one raises
        LonghaulError."""
        futures: list[Future[Mapping[str, float]]] = [Future() for _ in cases]
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the judge of programs is closed")
            self._waiting += zip(cases, futures, strict=True)
            self._changed.notify()
        return futures

    def judge_many(self, cases: Sequence[ProblemCase]) -> list[float | None]:
        """The values of all cases, in order, judged side by side. None: no verdict; never a reward of 0."""
        return [None if one.is_lost else self._value(one) for one in self.graded_many(cases)]

    def graded_many(self, cases: Sequence[ProblemCase]) -> list[Graded]:
        """How each rollout's program did, with the reason. A problem without tests has none of none passed."""
        tests = [unit_tests_of(case) for case in cases]
        asked = [(program_in(case.text, self._part.after), one) for case, one in zip(cases, tests, strict=True) if one]
        found = iter(judge_programs(self._sandbox, asked, self._part.limit, needs_all=not self._part.partial))
        return [next(found) if one else NO_TESTS for one in tests]

    def _value(self, found: Graded) -> float:
        return found.share if self._part.partial else float(found.is_right)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                batch, self._waiting = self._waiting, []
                if self._is_closed:
                    return
            running = [(case, future) for case, future in batch if future.set_running_or_notify_cancel()]
            try:
                tested = self.graded_many([case for case, _ in running])
            except BaseException as error:  # a bug, or a machine that lost a layer: whoever waits must hear of it
                for _, future in running:
                    future.set_exception(error)
                continue
            for (case, future), found in zip(running, tested, strict=True):
                if found.is_lost:
                    future.set_exception(_lost(case, found))
                else:
                    future.set_result({NAME: self._value(found), PASSED: found.share})


NO_TESTS = Graded(0, 0, "the problem has no tests")
"""The part does not apply: 0 for all rollouts of the problem alike."""


def program_in(text: str, after: str) -> str | None:
    """The program of a completion; None if it has none. after: as of the options. Thoughts never count. (pure)"""
    if not after:
        return last_program(text)
    _, closed, region = text.rpartition("</think>")
    if not closed and OPEN in text:
        return None
    program = region.rpartition(after)[2]
    return program if program.strip() else None


def unit_tests_of(case: ProblemCase) -> Tests:
    """The tests of the problem; none if it has an answer instead."""
    return read_tests(case.problem.gold) if case.problem.has_tests else ()


def _lost(case: ProblemCase, found: Graded) -> LonghaulError:
    return LonghaulError(
        f"the tests of {case.label} gave no verdict: {found.reason}",
        kept="the head, unchanged, and the rollouts of finished steps",
        next_command="python -m workers.sandbox --layers   (is the machine well?); then python -m orchestrator run",
        exit_code=ExitCode.REWARD,
    )
