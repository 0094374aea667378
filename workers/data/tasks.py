"""A finite source of tasks: a file of JSON lines. Every task is verified by running its program before training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from workers.data.checking import agrees, in_words
from workers.data.record import Record
from workers.data.sources import Source, read_file
from workers.sandbox import Case, Result, Sandbox, Status
from workers.sandbox.literal import Rejected
from workers.tasks.entry import Entry, make_entry
from workers.tasks.items import Task
from workers.tasks.validate_proposals import Rules, unsound


def read_tasks(path: Path, sandbox: Sandbox, tasks: Sequence[Task], rules: Rules | None = None) -> list[Entry]:
    """The tasks of the file in order, in any form that `data import` reads; outputs come from running them.

    Raises LonghaulError (INPUT) with the line of anything unusable, including a held-out program, outputs that differ
    from the stated ones, and a task that nobody can answer.
    """
    rules = rules or Rules()
    lines = _read(path)
    for number, record in lines:
        try:
            if rules.is_held_out(record.program):
                raise _bad(path, f"line {number}: the program belongs to a held-out suite, and must not be trained on")
        except (SyntaxError, ValueError) as error:
            raise _bad(path, f"line {number}: {error}") from error
    results = sandbox.check_deterministic_many([Case(record.program, record.inputs) for _, record in lines])
    entries = []
    for (number, record), outcome in zip(lines, results, strict=True):
        try:
            entry = _entry(record, outcome, rules)
        except (Rejected, SyntaxError, ValueError) as error:
            raise _bad(path, f"line {number}: {error}") from error
        if record.task in tasks:
            entries.append(entry)
    if not entries:
        raise _bad(path, f"holds no task of the kinds {', '.join(tasks)}")
    return entries


def _read(path: Path) -> list[tuple[int, Record]]:
    """(line, task); a triplet of the original gives two."""
    if not path.is_file():
        raise _bad(path, "is missing, or not a plain file")
    notes: list[str] = []
    lines = []
    for item in read_file(Source(path, path.name), notes.append):
        if item.record is None:
            raise _bad(path, f"line {item.line}: {item.text}")
        lines.append((item.line, item.record))
    if notes:
        raise _bad(path, "; ".join(notes))
    return lines


def _entry(record: Record, outcome: Sequence[Result], rules: Rules) -> Entry:
    """Raises ValueError or `Rejected` if this is not a valid task."""
    failed = next((one for one in outcome if one.status is not Status.OK), None)
    if failed is not None:
        raise ValueError(f"the program gives no value: {failed.status.value} {failed.message}")
    values = [one.value or "" for one in outcome]
    entry = make_entry(
        record.task, record.program, record.inputs, values, step=0, source="import", message=record.message
    )
    if not agrees(record, entry):
        raise ValueError(f"the line says {', '.join(record.outputs)}, the program gives {', '.join(values)}"[:300])
    if reason := unsound(entry, rules):
        raise ValueError(in_words(reason))
    return entry


def _bad(path: Path, why: str) -> LonghaulError:
    return LonghaulError(
        f"data.tasks {path}: {why}",
        kept="the run, unchanged",
        next_command="correct the file, then: python -m orchestrator run",
        exit_code=ExitCode.INPUT,
    )
