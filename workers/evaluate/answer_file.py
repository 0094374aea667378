"""The answers of one suite on disk, one line per question, so that no finished question is asked again."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from state.crash import crash_point
from state.durable import Appender, write_file
from workers.suites.asking import QuestionResult
from workers.suites.scoring import Outcome


class Line(Struct, frozen=True):
    """`completions` are text from a model: escape them before display."""

    outcome: Outcome
    completions: tuple[str, ...]


def answers_in(paths: Iterable[Path], wanted: Iterable[str]) -> dict[str, QuestionResult]:
    """Answers to the questions among `wanted`, by id. Skips missing files and torn lines; the first of duplicates
    counts."""
    names = set(wanted)
    found: dict[str, QuestionResult] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            for text in path.read_bytes().splitlines():
                with suppress(msgspec.DecodeError):
                    line = msgspec.json.decode(text, type=Line)
                    if line.outcome.question_id in names:
                        found.setdefault(line.outcome.question_id, QuestionResult(line.outcome, line.completions))
    return found


def encoded(one: QuestionResult) -> bytes:
    return msgspec.json.encode(Line(one.outcome, one.completions))


class AnswerFile:
    """Owns the file: only one process writes it, by the folder's lock, or because it is one job's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._appender = Appender(path)

    def add(self, answers: Iterable[QuestionResult]) -> None:
        """Append; durable on return."""
        for one in answers:
            self._appender.append(encoded(one))
        self._appender.sync()
        crash_point("evaluate.answers_written")

    def replace(self, answers: Iterable[QuestionResult]) -> None:
        """Replace the whole file with these, in this order; durable on return."""
        self._appender.close()
        write_file(self.path, b"".join(encoded(one) + b"\n" for one in answers))
        self._appender = Appender(self.path)

    def close(self) -> None:
        self._appender.close()
