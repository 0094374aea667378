"""The answers of one suite on disk, a line for each question: what was finished is never asked again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from state.crash import crash_point
from state.durable import Appender
from workers.suites.asking import QuestionResult
from workers.suites.scoring import Outcome


class Line(Struct, frozen=True):
    """`completions` are a model's text: escape them where they are shown."""

    outcome: Outcome
    completions: tuple[str, ...]


class AnswerFile:
    """Owns the file; one process at a time has it (the folder's lock sees to that)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._appender = Appender(path)

    def outcomes(self, wanted: Iterable[str]) -> dict[str, Outcome]:
        """By question, those of the `wanted` that are finished. A torn line counts as none; of two, the first."""
        names = set(wanted)
        found: dict[str, Outcome] = {}
        for text in self.path.read_bytes().splitlines():
            try:
                outcome = msgspec.json.decode(text, type=Line).outcome
            except msgspec.DecodeError:
                continue
            if outcome.question_id in names:
                found.setdefault(outcome.question_id, outcome)
        return found

    def add(self, answers: Iterable[QuestionResult]) -> None:
        """On disk when this returns."""
        for one in answers:
            self._appender.append(msgspec.json.encode(Line(one.outcome, one.completions)))
        self._appender.sync()
        crash_point("evaluate.answers_written")

    def close(self) -> None:
        self._appender.close()
