"""Imports tasks from other sources for the buffers of a new run, under the same rules as its own proposals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from state import event_kinds
from workers.azr.proposing import Tools, rules_of
from workers.data.checking import Checker
from workers.data.initial import initial_tasks, summary
from workers.data.record import Record
from workers.runtime import Attempt
from workers.tasks.entry import Entry
from workers.tasks.kinds.registry import item_of
from workers.tasks.styles import reading_rule_of
from workers.tasks.validate_proposals import TOO_LONG

IMPORT = "import"


@dataclass(frozen=True)
class Imported:
    """entries: in the order of the sources. sha256: of the imported data set; empty if nothing was imported."""

    entries: tuple[Entry, ...] = ()
    sha256: str = ""


def imported_entries(attempt: Attempt, tools: Tools, stop_asked: Callable[[], bool]) -> Imported:
    """Load the initial tasks from `data.sources`. Raises LonghaulError (INPUT) and `checking.Stopped`."""
    if not tools.profile.data.sources:
        return Imported()

    def progress(done: int, total: int) -> None:
        attempt.at(0, f"importing, {done} of {total} programs run")

    checker = Checker(tools.sandbox, rules_of(tools), unwanted_of(tools), progress, stop_asked)
    found = initial_tasks(attempt.run, tools.profile, checker, attempt.warn)
    if found.report is not None:
        attempt.event(
            event_kinds.IMPORT, text=summary(found.report), **found.report.as_json() | {"rejected": [], "conflicts": []}
        )
    entries = tuple(_entry(record) for record in found.data.records)
    return Imported(entries, found.data.header.sha256)


def unwanted_of(tools: Tools) -> Callable[[Entry], str]:
    """Returns a function that says why this run cannot use a valid task: a short reason, or "" if it can."""
    is_readable = reading_rule_of(tools.style.name, tools.tokenizer)

    def unwanted(entry: Entry) -> str:
        if entry.task not in tools.tasks:
            return "other_kind"
        if not all(map(is_readable, (entry.program, *entry.inputs, *entry.outputs))):
            return "unreadable"
        return "" if tools.fits(tools.encode(tools.style.solve(entry.task, item_of(entry)))) else TOO_LONG

    return unwanted


def _entry(record: Record) -> Entry:
    """The record as a task of step 0. Drops the solve rate, which another model measured."""
    return Entry(
        task=record.task,
        program=record.program,
        inputs=record.inputs,
        outputs=record.outputs,
        step=0,
        source=IMPORT,
        message=record.message,
        key=record.key,
        program_key=record.program_key,
    )
