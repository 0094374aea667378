"""Loads the requested suites, or reports why it cannot (`load_suites`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.suites import SuiteRecord, UnknownSuite, record_of, shipped_suites
from workers.suites.source import Source
from workers.suites.suite import Suite


def load_suites(
    names: Sequence[str],
    folder: Path | None,
    count: int,
    *,
    all_of_files: bool = False,
    profile: Profile | None = None,
) -> list[Suite]:
    """The named suites. count: questions per task, a fixed subset; 0: all. profile: of the run, for suites of its own.

    all_of_files: every question of finite suites; `count` applies to endless ones only.

    Raises LonghaulError: USAGE for an unknown name, INPUT if data is missing, torn or empty, or if a suite asks about
    tasks that its record does not list.
    """
    sources = [_source_of(name).of(profile) for name in names]
    return [_load(name, source, folder, count, all_of_files) for name, source in zip(names, sources, strict=True)]


def sources_of(profile: Profile) -> dict[str, Source]:
    """Every shipped suite and those that the profile names, except any that asks no model.

    Raises LonghaulError (USAGE) if the profile names one that cannot be found.
    """
    found = {name: _found(name) for name in (*shipped_suites(), *profile.validation.suites)}
    return {name: record for name, record in found.items() if isinstance(record, Source)}


def _source_of(name: str) -> Source:
    record = _found(name)
    if not isinstance(record, Source):
        raise _refused(UnknownSuite(f"the suite {name!r} asks no model"))
    return record


def _found(name: str) -> SuiteRecord:
    try:
        return record_of(name)
    except UnknownSuite as error:
        raise _refused(error) from error


def _refused(error: UnknownSuite) -> LonghaulError:
    return LonghaulError(
        str(error),
        kept="everything; nothing was asked",
        next_command=f"python -m orchestrator evaluate {f'--on {error.near}' if error.near else '--help'}",
        exit_code=ExitCode.USAGE,
    )


def _load(name: str, source: Source, folder: Path | None, count: int, all_of_files: bool) -> Suite:
    suite = source.load(name, folder, count, whole=all_of_files)
    if unlisted := sorted({question.task for question in suite.questions} - {*source.tasks}):
        raise LonghaulError(
            f"the suite {name} asks about {', '.join(unlisted)}; its record lists {', '.join(source.tasks)}",
            kept="everything; nothing was asked",
            next_command="name them in `tasks` of the suite's record, then the same command",
            exit_code=ExitCode.INPUT,
        )
    return suite
