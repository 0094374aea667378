"""A suite by its record and by where its questions come from: what a file of `shipped/`, or one of your own, declares.

Nothing that takes time is imported before a question is asked for: the master reads these records too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.suites import SuiteRecord
from workers.suites.data_files import DataFile, is_at_hand

if TYPE_CHECKING:
    from workers.suites.question import Question
    from workers.suites.suite import Suite


class Source(SuiteRecord, frozen=True, kw_only=True):
    """A suite that asks a model questions."""

    file: DataFile | None = None
    """What it reads of the folder of data files; None: it needs none."""
    folds: Mapping[str, Callable[[str], bool]] = {}
    """Prompt style -> a rule that holds every program of the suite out of a run in that style, and more, by their
    normal text."""

    def load(self, name: str, folder: Path | None, count: int, *, whole: bool = False) -> Suite:
        """The suite under its name. folder: of data files. count: questions, or questions of each task; 0: all that
        there are. whole: every question, where they have an end. Raises LonghaulError (INPUT) where data is missing."""
        raise NotImplementedError

    def largest(self, folder: Path | None, count: int) -> Sequence[Question]:
        """All questions that a run with `count` of them, or an evaluation, may ask."""
        raise NotImplementedError

    def is_at_hand(self, folder: Path | None) -> bool:
        """Whether it can be asked now."""
        return self.file is None or is_at_hand(self.file, folder)


class Listed(Source, frozen=True, kw_only=True):
    """A suite whose questions have an end. read: all of them, from the folder of data files."""

    read: Callable[[Path | None], Sequence[Question]]

    def load(self, name: str, folder: Path | None, count: int, *, whole: bool = False) -> Suite:
        """`count` questions: a fixed subset."""
        from workers.suites.question import subset
        from workers.suites.suite import Suite

        questions = self.read(folder)
        return Suite(name, subset(questions, count) if count and not whole else questions, available=len(questions))

    def largest(self, folder: Path | None, count: int) -> Sequence[Question]:
        return self.read(folder)


class Drawn(Source, frozen=True, kw_only=True):
    """A suite whose questions are drawn from a seed, without end. draw: from its name and the number of each task."""

    draw: Callable[[str, int], Suite]
    num_each: int = 300
    """Questions of each task where no number is asked for."""

    def load(self, name: str, folder: Path | None, count: int, *, whole: bool = False) -> Suite:
        """`count` questions of each task."""
        return self.draw(name, count or self.num_each)

    def largest(self, folder: Path | None, count: int) -> Sequence[Question]:
        return self.draw("", max(self.num_each, count)).questions
