"""Who is right, by running programs: the verdict on answers, and on whether stored tasks still hold.

Answers are text of a model. Literals are compared as literals; everything else runs in the sandbox, and the expected
value never enters it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from workers.azr.buffers import Entry
from workers.sandbox import Case, Result, Sandbox, Status
from workers.sandbox.literal import Rejected, canonical_arguments, same_value
from workers.sandbox.screen import screen

NOT_RUN = "not run"
MAX_ROUNDS = 8


class Verdict(Enum):
    CORRECT = "correct"
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """The machine, not the answer, decided: such a row is dropped."""


@dataclass(frozen=True)
class Answer:
    """An answer to a stored task; text None: it was malformed."""

    entry: Entry
    text: str | None


class Judge:
    """Judges answers in batches, each distinct (program, input) once."""

    def __init__(self, sandbox: Sandbox, num_shown: int) -> None:
        self._sandbox = sandbox
        self._num_shown = num_shown
        self.executions = 0

    def judge(self, answers: Sequence[Answer], recheck: Sequence[Entry] = ()) -> tuple[list[Verdict], frozenset[str]]:
        """A verdict for each answer, and the keys of the tasks in `recheck` whose outputs are not what they were."""
        calls: dict[str, dict[str, None]] = {}
        for answer in answers:
            for program, arguments in self._needs(answer):
                calls.setdefault(program, {})[arguments] = None
        for entry in recheck:
            calls.setdefault(entry.program, {}).update(dict.fromkeys(entry.inputs))
        results = self._run(calls)
        changed = frozenset(entry.key for entry in recheck if _has_changed(entry, results))
        verdicts = [Verdict.UNKNOWN if a.entry.key in changed else self._verdict(a, results) for a in answers]
        return verdicts, changed

    def _needs(self, answer: Answer) -> list[tuple[str, str]]:
        """The calls that this answer's verdict depends on."""
        if answer.text is None or answer.entry.task == "ded":
            return []
        if answer.entry.task == "ind":
            return [] if screen(answer.text) else [(answer.text, text) for text in self._hidden(answer.entry)]
        arguments = _canonical(answer.text)
        return [(answer.entry.program, arguments)] if arguments is not None else []

    def _verdict(self, answer: Answer, results: dict[tuple[str, str], Result]) -> Verdict:
        if answer.text is None:
            return Verdict.WRONG
        if answer.entry.task == "ded":
            return _of(same_value(answer.text, answer.entry.outputs[0]))
        needed = self._needs(answer)
        if not needed:
            return Verdict.WRONG
        found = [results[call] for call in needed]
        if any(result.from_wall for result in found):
            return Verdict.UNKNOWN
        outputs = answer.entry.outputs
        expected = outputs[self.shown_of(answer.entry) :] if answer.entry.task == "ind" else outputs
        return _of(
            all(
                result.status is Status.OK and same_value(result.value or "", value)
                for result, value in zip(found, expected, strict=True)
            )
        )

    def _hidden(self, entry: Entry) -> tuple[str, ...]:
        return entry.inputs[self.shown_of(entry) :]

    def shown_of(self, entry: Entry) -> int:
        """Pairs that the prompt shows; of fewer pairs than usual, half are hidden."""
        return self._num_shown if len(entry.inputs) > self._num_shown else len(entry.inputs) // 2

    def _run(self, calls: dict[str, dict[str, None]]) -> dict[tuple[str, str], Result]:
        """Results of all calls. A call that ended its process takes the later ones along: these run once more."""
        results: dict[tuple[str, str], Result] = {}
        waiting = [Case(program, tuple(arguments)) for program, arguments in calls.items()]
        for _ in range(MAX_ROUNDS):
            lost = []
            for case, found in zip(waiting, self._sandbox.execute_many(waiting), strict=True):
                self.executions += len(found)
                results |= {(case.program, text): one for text, one in zip(case.inputs, found, strict=True)}
                again = [text for text, one in zip(case.inputs, found, strict=True) if _was_not_run(one)]
                if again:
                    lost.append(Case(case.program, tuple(again)))
            waiting = lost
            if not waiting:
                break
        return results


def _was_not_run(result: Result) -> bool:
    return result.status is Status.KILLED and result.message.startswith(NOT_RUN)


def _has_changed(entry: Entry, results: dict[tuple[str, str], Result]) -> bool:
    """Whether a definite result differs from what is stored; a wall-clock verdict proves nothing."""
    found = [results[entry.program, text] for text in entry.inputs]
    return any(
        not result.from_wall and not same_value(result.value or "", value)
        for result, value in zip(found, entry.outputs, strict=True)
    )


def _canonical(text: str) -> str | None:
    try:
        return canonical_arguments(text)
    except Rejected:
        return None


def _of(is_correct: bool) -> Verdict:
    return Verdict.CORRECT if is_correct else Verdict.WRONG
