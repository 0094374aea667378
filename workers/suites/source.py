"""A suite's record with the source of its questions. Each file of `shipped/`, and each suite of your own, declares one.

Nothing slow is imported before the first question is requested, because the master reads these records too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.suites import SuiteRecord
from workers.suites.data_files import DataFile, is_at_hand

if TYPE_CHECKING:
    from workers.suites.question import Question
    from workers.suites.suite import Suite


class Source(SuiteRecord, frozen=True, kw_only=True):
    """A suite that asks a model questions."""

    file: DataFile | None = None
    """The file that it reads from the data folder; None if it needs none."""
    folds: Mapping[str, Callable[[str], bool]] = {}
    """Prompt style -> a rule that holds all the suite's programs, and more, out of a run in that style, by their normal
    text."""

    def load(self, name: str, folder: Path | None, count: int, *, whole: bool = False) -> Suite:
        """The suite under its name. folder: of data files. count: questions, or questions per task; 0: all. whole:
        every question of a finite suite. Raises LonghaulError (INPUT) if data is missing."""
        raise NotImplementedError

    def largest(self, folder: Path | None, count: int) -> Sequence[Question]:
        """All questions that a run with this `count`, or an evaluation, may ask."""
        raise NotImplementedError

    def of(self, profile: Profile | None) -> Source:
        """The same suite for a run of this profile."""
        return self

    def is_at_hand(self, folder: Path | None) -> bool:
        """Whether its data is available."""
        return self.file is None or is_at_hand(self.file, folder)


class OfRun(Source, frozen=True, kw_only=True):
    """A finite suite that depends on the profile. ask: reads all its questions."""

    ask: Callable[[Profile], Sequence[Question]]

    def of(self, profile: Profile | None) -> Source:
        """Raises LonghaulError (USAGE) where no profile is known."""
        if profile is None:
            raise LonghaulError(
                "this suite asks a run's own held-out problems, and no run is named",
                kept="everything; nothing was asked yet",
                next_command="python -m orchestrator evaluate --run NAME --on held-out",
                exit_code=ExitCode.USAGE,
            )
        known = {name: getattr(self, name) for name in SuiteRecord.__struct_fields__}
        return Listed(**known, read=lambda folder: self.ask(with_folder(profile, folder)))

    def largest(self, folder: Path | None, count: int) -> Sequence[Question]:
        """None: it has no programs that self-play could train on."""
        return ()


def with_folder(profile: Profile, folder: Path | None) -> Profile:
    """The profile with the folder of data files that an evaluation names. (pure)"""
    return replace(profile, validation=replace(profile.validation, data=str(folder) if folder else ""))


class Listed(Source, frozen=True, kw_only=True):
    """A finite suite. read: reads all questions from the data folder."""

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
    """An endless suite, drawn from a seed. draw: makes it from its name and the number of questions per task."""

    draw: Callable[[str, int], Suite]
    num_each: int = 300
    """Questions per task if no number is given."""

    def load(self, name: str, folder: Path | None, count: int, *, whole: bool = False) -> Suite:
        """`count` questions of each task."""
        return self.draw(name, count or self.num_each)

    def largest(self, folder: Path | None, count: int) -> Sequence[Question]:
        return self.draw("", max(self.num_each, count)).questions
