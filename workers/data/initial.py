"""A run's initial tasks: those of its profile's `data.sources`, verified once and kept beside the run.

A killed attempt leaves the finished set or nothing; the next one finds the set by the hash of its inputs.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state.layout import RunDir
from state.reader import Reader, is_born
from workers.data.checking import CHECKED_WITH, Checker
from workers.data.consolidate import Report, consolidate
from workers.data.data_set import DataSet, is_header, read_data_set, read_header
from workers.data.sources import Source, check_source

PREVIOUS = "previous"
"""As a source: the final tasks of the newest earlier run with the same profile."""


@dataclass(frozen=True)
class Initial:
    """data: the verified set. report: how the set was made; None if an earlier attempt made it."""

    data: DataSet
    report: Report | None = None


def initial_tasks(run: RunDir, profile: Profile, checker: Checker, note: Callable[[str], None]) -> Initial:
    """The run's set `data/imported.jsonl`. It is empty if the only source is a `previous` run that does not exist.

    note: receives messages for the user. Raises LonghaulError (INPUT) for an unusable source, or if no task is valid;
    `checking.Stopped`.
    """
    wanted = inputs_sha256(profile)
    known = _as_left(run.imported)
    if known.content and known.header.inputs == wanted:
        return Initial(known)
    sources = [source for name in profile.data.sources if (source := _source(name, run, profile, note)) is not None]
    if not sources:
        return Initial(known)
    try:
        for source in sources:
            check_source(source)
    except LonghaulError as error:
        raise _unusable(error.what) from error
    data, report = consolidate(run.imported, sources, checker, rebuild=True, inputs=wanted)
    for text in report.notes:
        note(text)
    if not report.total("valid"):
        raise _unusable(f"no valid task ({summary(report)})")
    return Initial(data, report)


def inputs_sha256(profile: Profile) -> str:
    """Hash of everything that decides which tasks a run takes over, except the sources' content, which is read once."""
    parts = [
        profile.data.sources,
        profile.azr,
        profile.sandbox,
        profile.model,
        profile.sampling.max_prompt_tokens,
        profile.validation.suites,
        CHECKED_WITH,
    ]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _as_left(path: Path) -> DataSet:
    """The set as it was left. A damaged set of our own is made again."""
    try:
        return read_data_set(path)
    except LonghaulError:
        path.unlink()
        return read_data_set(path)


def _source(name: str, run: RunDir, profile: Profile, note: Callable[[str], None]) -> Source | None:
    """Resolves `previous`, a path, or the name of a run beside this one. Whether it exists is checked later.

    None: there is no previous run.
    """
    beside = RunDir(run.root.parent / name)
    if name != PREVIOUS:
        path = Path(name).expanduser()
        is_run = not path.exists() and beside.store.is_file()
        return Source(result_of(beside) if is_run else path.absolute(), name)
    found = previous_run(run, profile.name)
    if found is None:
        note(f"there is no earlier run of profile {profile.name} to continue from: this run starts from the identity")
        return None
    return Source(result_of(found), found.name)


def previous_run(run: RunDir, profile_name: str) -> RunDir | None:
    """The newest run beside `run` that began earlier, has the profile of that name, and has a head."""
    began = _began(run, "")
    found = [
        (at, folder)
        for folder in sorted(run.root.parent.iterdir())
        if folder != run.root and (at := _began(RunDir(folder), profile_name)) and (began is None or at < began)
    ]
    return RunDir(max(found)[1]) if found else None


def _began(run: RunDir, profile_name: str) -> float | None:
    """When the run began (UTC seconds); None if it is not a run of that profile with a head. Empty name: any
    profile."""
    if not is_born(run) or not run.store.is_file():
        return None
    rule = "head IS NOT NULL AND json_extract(profile, '$.name') = ?"
    sql = f"SELECT created_at FROM runs WHERE ? = '' OR ({rule})"
    try:
        reader = Reader.open(run)
    except LonghaulError:
        return None  # damaged: another run may still be meant
    try:
        row = reader.connection.execute(sql, [profile_name, profile_name]).fetchone()
    except sqlite3.Error:
        return None
    finally:
        reader.close()
    return float(row[0]) if row else None


def result_of(run: RunDir) -> Path:
    """The set that a run left for its successor, if it matches the run's head; else the run itself."""
    reader = Reader.open(run)
    try:
        head = reader.history().head
    finally:
        reader.close()
    if head is not None and run.next_input.is_file():
        with run.next_input.open("rb") as file:
            first = file.readline()
        header = read_header(first) if is_header(first) else None
        if header is not None and header.inputs == head.checkpoint_id:
            return run.next_input
    return run.root


def summary(report: Report) -> str:
    """One line for the user who starts the run. (pure)"""
    facts = report.as_json()
    text = f"{facts['added']} tasks from {', '.join(source['source'] for source in facts['sources'])}"
    lost = {"duplicate": facts["duplicate"], "conflict": facts["conflict"], **facts["invalid"]}
    counts = ", ".join(f"{name} {number}" for name, number in lost.items() if number)
    return text + (f"; not taken: {counts}" if counts else "")


def _unusable(why: str) -> LonghaulError:
    return LonghaulError(
        f"data.sources: {why}",
        kept="the sources, unchanged",
        next_command="""python -m orchestrator run --set 'data.sources=["..."]' --accept-changes   (docs/data.md)""",
        exit_code=ExitCode.INPUT,
    )
