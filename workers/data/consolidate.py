"""Merges many sources into one data set: runs every program again, drops duplicates, and gives a reason for every loss.

A record is valid if its program may run and returns the stated outputs. A valid record whose task is already known is a
duplicate. If outputs differ for the same task, there is a conflict, and the first valid record stays.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from workers.data import data_set
from workers.data.checking import CHECKED_WITH, CheckedTask, Checker, agrees, outcome
from workers.data.data_set import DataSet, Header, ImportFacts
from workers.data.record import Origin, Record
from workers.data.sources import Item, Source, check_source, fingerprint, read_source
from workers.tasks.entry import Entry

MAX_LISTED = 1000
"""How many refused lines, and conflicts, a report lists; all are counted."""

TaskKey = tuple[str, str]
Outcome = tuple[tuple[str, str], ...]


@dataclass
class Report:
    """The result of one consolidation, as JSON types."""

    into: str
    before: int = 0
    after: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Tasks of the set itself that are no longer valid under the present rules or Python, by reason."""
    sources: list[ImportFacts] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    written: bool = False
    backup: str = ""
    seconds: float = 0.0

    def total(self, name: str) -> int:
        return sum(getattr(facts, name) for facts in self.sources)

    def as_json(self) -> dict[str, Any]:
        invalid: Counter[str] = Counter()
        for facts in self.sources:
            invalid.update(facts.invalid)
        names = ("lines", "read", "valid", "added", "duplicate", "conflict")
        return {
            "into": self.into,
            "before": self.before,
            "after": self.after,
            **{name: self.total(name) for name in names},
            "invalid": dict(invalid.most_common()),
            "dropped": self.dropped,
            "sources": [_plain(facts) for facts in self.sources],
            "conflicts": self.conflicts,
            "rejected": self.rejected,
            "notes": self.notes,
            "written": self.written,
            "backup": self.backup,
            "seconds": round(self.seconds, 3),
        }


def _plain(facts: ImportFacts) -> dict[str, Any]:
    return dict(msgspec.to_builtins(facts))


@dataclass
class Gathered:
    """The tasks so far, in order, with their origins."""

    records: list[Record] = field(default_factory=list)
    outcomes: dict[TaskKey, Outcome] = field(default_factory=dict)
    places: dict[TaskKey, tuple[str, int]] = field(default_factory=dict)
    numbers: dict[TaskKey, int] = field(default_factory=dict)
    """Index of each task in `records`."""

    def knows(self, key: TaskKey) -> bool:
        return key in self.outcomes

    def add(self, record: Record, place: tuple[str, int]) -> None:
        key = (record.task, record.key)
        self.numbers[key] = len(self.records)
        self.records.append(record)
        self.outcomes[key] = outcome(record.inputs, record.outputs)
        self.places[key] = place

    def fill_in(self, key: TaskKey, origin: Origin) -> None:
        """Add the run that found a task, if the task was known without one, as in a foreign file."""
        known = self.records[self.numbers[key]]
        if origin.run and not known.origin.run:
            known = replace(known, origin=replace(origin, file=known.origin.file, line=known.origin.line))
            self.records[self.numbers[key]] = known


def consolidate(
    into: Path,
    sources: Sequence[Source],
    checker: Checker,
    *,
    rebuild: bool = False,
    inputs: str = "",
    told: Callable[[str], None] = lambda text: None,
) -> tuple[DataSet, Report]:
    """Add the sources' tasks to the data set `into`; with `rebuild`, replace it by them.

    The set is written only if it changes, and only after everything is verified; sources without valid tasks leave it
    as it is. Raises LonghaulError, and `checking.Stopped` if the checker is asked to stop.
    """
    began = time.monotonic()
    for source in sources:
        check_source(source)
        if source.path.resolve() == into.resolve():
            raise _into_itself(source)
    with data_set.locked(into):
        old = data_set.read_data_set(into)
        report = Report(into=str(into), before=len(old.records))
        gathered = Gathered() if rebuild else _start(old, checker, report)
        for source in sources:
            told(f"reading {source.name}")
            _take(source, gathered, checker, report)
        new = _write(old, gathered, report, inputs, rebuild=rebuild) if report.total("valid") else old
    report.after, report.seconds = len(new.records), time.monotonic() - began
    return new, report


def _start(old: DataSet, checker: Checker, report: Report) -> Gathered:
    """The present tasks of the set, run again if they were verified under other rules."""
    gathered = Gathered()
    records = list(old.records)
    if records and old.header.checked_with != CHECKED_WITH:
        report.notes.append(f"the set was verified with {old.header.checked_with}: it is run again")
        verdicts = checker.check(records)
        reasons = [_reason(record, verdict) for record, verdict in zip(records, verdicts, strict=True)]
        report.dropped = dict(Counter(reason for reason in reasons if reason).most_common())
        records = [record for record, reason in zip(records, reasons, strict=True) if not reason]
    for record in records:
        gathered.add(record, (record.origin.file, record.origin.line))
    return gathered


def _reason(record: Record, verdict: CheckedTask) -> str:
    if verdict.entry is None:
        return verdict.reason
    return "" if agrees(record, verdict.entry) else "other_output"


def _take(source: Source, gathered: Gathered, checker: Checker, report: Report) -> None:
    """Process one source: read, verify, merge, count."""
    sha256 = fingerprint(source)
    items = list(read_source(source, report.notes.append))
    verdicts = iter(checker.check([item.record for item in items if item.record is not None]))
    tally: Counter[str] = Counter()
    invalid: Counter[str] = Counter()
    wrong: list[tuple[Item, Entry]] = []

    def reject(item: Item, reason: str, text: str) -> None:
        invalid[reason] += 1
        row = {"source": source.name, "line": item.line, "reason": reason, "text": text[:300]}
        # Both tasks of a triplet fail alike, so report one.
        if len(report.rejected) < MAX_LISTED and row not in report.rejected[-1:]:
            report.rejected.append(row)

    for item in items:
        if item.record is None:
            reject(item, item.reason, item.text)
            continue
        verdict = next(verdicts)
        if verdict.entry is None:
            reject(item, verdict.reason, verdict.text)
        elif not agrees(item.record, verdict.entry):
            wrong.append((item, verdict.entry))
        else:
            tally[_merge(item, verdict.entry, gathered, source, report)] += 1
    # Last, so that it does not matter whether a wrong line comes before or after the right one.
    for item, entry in wrong:
        assert item.record is not None
        if gathered.knows((entry.task, entry.key)):
            tally["conflict"] += 1
            _list_conflict(item, entry.key, item.record.outputs, gathered, source, report)
        else:
            stated, given = _short(item.record.outputs), _short(entry.outputs)
            reject(item, "other_output", f"the line says {stated}, the program gives {given}")
    report.sources.append(
        ImportFacts(
            source=source.name,
            kind=source.kind,
            sha256=sha256,
            lines=len({item.line for item in items}),
            read=len(items),
            valid=tally["added"] + tally["duplicate"],
            added=tally["added"],
            duplicate=tally["duplicate"],
            conflict=tally["conflict"],
            invalid=dict(invalid.most_common()),
            at=time.time(),
        )
    )


def _merge(item: Item, entry: Entry, gathered: Gathered, source: Source, report: Report) -> str:
    """`added`, `duplicate` or `conflict`. In a conflict both are valid: equal syntax trees may still behave
    differently, through docstrings that a class reads."""
    assert item.record is not None
    key = (entry.task, entry.key)
    if not gathered.knows(key):
        gathered.add(verified(item.record, entry), (source.name, item.line))
        return "added"
    if gathered.outcomes[key] == outcome(entry.inputs, entry.outputs):
        gathered.fill_in(key, item.record.origin)
        return "duplicate"
    _list_conflict(item, entry.key, entry.outputs, gathered, source, report)
    return "conflict"


def verified(record: Record, entry: Entry) -> Record:
    """The record with canonical inputs, the outputs that its program returned, and our own keys. (pure)"""
    return replace(
        record,
        program=entry.program,
        inputs=entry.inputs,
        outputs=entry.outputs,
        key=entry.key,
        program_key=entry.program_key,
    )


def _list_conflict(
    item: Item, key: str, outputs: Iterable[str], gathered: Gathered, source: Source, report: Report
) -> None:
    assert item.record is not None
    if len(report.conflicts) >= MAX_LISTED:
        return
    known = gathered.outcomes[item.record.task, key]
    file, line = gathered.places[item.record.task, key]
    report.conflicts.append(
        {
            "source": source.name,
            "line": item.line,
            "task": item.record.task,
            "key": key,
            "program": item.record.program,
            "inputs": list(item.record.inputs),
            "outputs": list(outputs),
            "kept": [list(pair) for pair in known],
            "kept_from": f"{file}:{line}" if file else "",
        }
    )


def _short(texts: Sequence[str]) -> str:
    return ", ".join(texts)[:100] or "nothing"


def _write(old: DataSet, gathered: Gathered, report: Report, inputs: str, *, rebuild: bool) -> DataSet:
    """Write the set, unless its tasks are unchanged."""
    records = tuple(gathered.records)
    is_same = records == old.records and old.header.checked_with == CHECKED_WITH and old.header.inputs == inputs
    if is_same and old.content:
        return old
    earlier = () if rebuild else old.header.imports
    header = Header(
        checked_with=CHECKED_WITH,
        inputs=inputs,
        imports=(*earlier, *report.sources),
        written_at=time.time(),
    )
    new = data_set.write_data_set(old, records, header)
    report.written = True
    if old.content:
        report.backup = str(data_set.backup_files(old.path)[-1])
    return new


def _into_itself(source: Source) -> LonghaulError:
    return LonghaulError(
        f"{source.name} is the data set to write, and cannot be its own source",
        kept="everything; nothing was read",
        next_command="the same command with another file for --into",
        exit_code=ExitCode.USAGE,
    )
