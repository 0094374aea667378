"""Judges by running programs: which answers are right, and whether stored tasks still hold.

Answers are text from a model. If the kind judges by text, they are compared as literals; everything else runs in the
sandbox, and the expected value never enters it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from workers.sandbox import Case, Result, Sandbox, Status
from workers.sandbox.literal import same_value
from workers.sandbox.verdict import NOT_RUN
from workers.tasks import pairs
from workers.tasks.entry import Entry
from workers.tasks.kinds.registry import kind_of

WALL_RETRIES = 2
"""How often to retry a call that hit the wall-clock limit: the machine may have been busy."""

InductionScore = Literal["binary", "accuracy", "if_one_correct"]


class Correctness(Enum):
    CORRECT = "correct"
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """The machine decided, not the answer; such a row is dropped."""


@dataclass(frozen=True)
class Answer:
    """An answer to a stored task; text None if malformed."""

    entry: Entry
    text: str | None


@dataclass(frozen=True)
class Judged:
    """The verdict. score: 1 for a correct answer; a fraction for a program that holds only on some hidden pairs."""

    verdict: Correctness
    score: float = 0.0


class Judge:
    """Judges answers in batches, running each distinct (program, input) once.

    num_shown: how many of a task's pairs a prompt shows; None: half. strict_types: 1 is not equal to 1.0.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        num_shown: int | None,
        *,
        strict_types: bool = False,
        induction: InductionScore = "binary",
    ) -> None:
        self._sandbox = sandbox
        self._num_shown = num_shown
        self._strict, self._induction = strict_types, induction
        self.executions = self.timeouts = 0
        """Calls made, and how many of them timed out."""

    def judge(
        self, answers: Sequence[Answer], recheck: Sequence[Entry] = ()
    ) -> tuple[list[Correctness], frozenset[str]]:
        """A verdict for each answer, and the keys of the tasks in `recheck` whose outputs have changed."""
        judged, changed = self.score(answers, recheck)
        return [one.verdict for one in judged], changed

    def score(self, answers: Sequence[Answer], recheck: Sequence[Entry] = ()) -> tuple[list[Judged], frozenset[str]]:
        """Like `judge`, but with scores."""
        calls: dict[str, dict[str, None]] = {}
        for answer in answers:
            for program, arguments in self._needs(answer):
                calls.setdefault(program, {})[arguments] = None
        for entry in recheck:
            calls.setdefault(entry.program, {}).update(dict.fromkeys(entry.inputs))
        results = self._run(calls, self._all_or_nothing(answers, recheck))
        changed = frozenset(entry.key for entry in recheck if _has_changed(entry, results))
        unknown = Judged(Correctness.UNKNOWN)
        return [unknown if a.entry.key in changed else self._judged(a, results) for a in answers], changed

    def _all_or_nothing(self, answers: Sequence[Answer], recheck: Sequence[Entry]) -> frozenset[str]:
        """Programs that are wrong once any of their calls fails: each answers a single task, and that needs all
        pairs."""
        if self._induction != "binary":
            return frozenset()
        tasks: dict[str, set[str]] = {}
        for answer in answers:
            if kind_of(answer.entry.task).answers_program and answer.text is not None:
                tasks.setdefault(answer.text, set()).add(answer.entry.key)
        stored = {answer.entry.program for answer in answers} | {entry.program for entry in recheck}
        return frozenset(program for program, keys in tasks.items() if len(keys) == 1 and program not in stored)

    def _needs(self, answer: Answer) -> list[tuple[str, str]]:
        """The calls that this answer's verdict depends on."""
        kind = kind_of(answer.entry.task)
        if answer.text is None or not kind.runs_answers:
            return []
        return kind.calls(answer.entry, answer.text, self.num_shown_of(answer.entry))

    def _judged(self, answer: Answer, results: dict[tuple[str, str], Result]) -> Judged:
        if answer.text is None:
            return _of(0.0)
        kind = kind_of(answer.entry.task)
        if not kind.runs_answers:
            return _of(float(kind.is_right(answer.entry, answer.text, self._same)))
        needed = self._needs(answer)
        if not needed:
            return _of(0.0)
        found = [results[call] for call in needed]
        if any(result.is_undecided for result in found):
            return Judged(Correctness.UNKNOWN)
        expected = kind.expected(answer.entry, self.num_shown_of(answer.entry))
        passed = sum(
            result.status is Status.OK and self._same(result.value or "", value)
            for result, value in zip(found, expected, strict=True)
        )
        return _of(induction_score(passed, len(found), self._induction))

    def _same(self, a_text: str, b_text: str) -> bool:
        return same_value(a_text, b_text, strict_types=self._strict)

    def num_shown_of(self, entry: Entry) -> int:
        """Pairs that the prompt shows; of fewer pairs than usual, half are hidden."""
        return pairs.num_shown_of(len(entry.inputs), self._num_shown)

    def _run(
        self, calls: dict[str, dict[str, None]], all_or_nothing: Collection[str] = ()
    ) -> dict[tuple[str, str], Result]:
        """Results of all calls. A call that kills its process takes later calls with it. Those run once more, each in a
        process of its own, unless the program is already wrong.

        Calls that hit the wall-clock limit are retried too, WALL_RETRIES times.
        """
        results: dict[tuple[str, str], Result] = {}
        retries: Counter[tuple[str, str]] = Counter()
        waiting = [Case(program, tuple(arguments)) for program, arguments in calls.items()]
        for _ in range(2 + WALL_RETRIES):
            lost = []
            for case, found in zip(waiting, self._sandbox.execute_many(waiting), strict=True):
                self.executions += sum(not _was_not_run(one) for one in found)
                self.timeouts += sum(one.status is Status.TIMEOUT for one in found)
                results |= {(case.program, text): one for text, one in zip(case.inputs, found, strict=True)}
                late = [text for text, one in zip(case.inputs, found, strict=True) if one.from_wall]
                late = [text for text in late if retries[case.program, text] < WALL_RETRIES]
                retries.update((case.program, text) for text in late)
                again = [text for text, one in zip(case.inputs, found, strict=True) if _was_not_run(one)]
                if case.program in all_or_nothing and not any(one.from_wall for one in found):
                    again = []
                lost += [Case(case.program, (text,)) for text in (*again, *late)]
            waiting = lost
            if not waiting:
                break
        return results


def _was_not_run(result: Result) -> bool:
    return result.status is Status.KILLED and result.message.startswith(NOT_RUN)


def _has_changed(entry: Entry, results: dict[tuple[str, str], Result]) -> bool:
    """Whether a definite result differs from the stored one; one that the machine ended proves nothing."""
    found = [results[entry.program, text] for text in entry.inputs]
    return any(
        not result.is_undecided and not same_value(result.value or "", value)
        for result, value in zip(found, entry.outputs, strict=True)
    )


def _of(score: float) -> Judged:
    return Judged(Correctness.CORRECT if score == 1.0 else Correctness.WRONG, score)


def induction_score(passed: int, checked: int, kind: InductionScore = "binary") -> float:
    """Score of a program that passed `passed` of the `checked` hidden pairs; shown pairs do not count."""
    if kind == "accuracy":
        return passed / checked
    return float(passed == checked if kind == "binary" else passed > 0)
