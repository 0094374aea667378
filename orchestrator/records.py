"""Reads the files of attempts without the store: each one's spec, its checkpoints and its result.

Every spec names the checkpoint that the attempt started from, every checkpoint event has the checkpoint's id, and every
manifest names its parent. Together they give the line of checkpoints from the first one to any that still exists.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.commit import read_result
from state import event_kinds
from state.checkpoint import Damaged, Manifest, read_manifest
from state.history import CheckpointFacts
from state.layout import AttemptDir, RunDir
from state.store import NewAttempt
from workers.contract import CheckpointRef, Event, Result, WorkerSpec

_ATTEMPT = re.compile(r"(attempt|validate)-(\d+)")
_events = msgspec.json.Decoder(Event)
_specs = msgspec.json.Decoder(WorkerSpec)


@dataclass(frozen=True)
class Record:
    """One attempt, read from its files. result: None if it wrote none."""

    directory: AttemptDir
    spec: WorkerSpec
    result: Result | None

    @property
    def has_begun(self) -> bool:
        """Whether the worker started. Only a spec means that the master died before it told the worker to start."""
        return self.directory.events.exists() or self.result is not None

    @property
    def order(self) -> tuple[int, bool, int]:
        return self.spec.cycle, self.spec.role == "validate", self.spec.attempt


@dataclass(frozen=True)
class Link:
    """One checkpoint of a line. facts.bytes: 0 if the checkpoint is known only from specs, events or results."""

    facts: CheckpointFacts
    attempt: int
    token: str


def new_attempt(spec: WorkerSpec, now: float) -> NewAttempt:
    """The row of an attempt, as its spec has it. (pure)"""
    return NewAttempt(
        spec.cycle, spec.role, spec.attempt, spec.token, spec.first_step, spec.reductions, now, is_asked=spec.asked
    )


def read_records(run: RunDir, run_id: str = "") -> list[Record]:
    """All attempts with an intact spec in the expected directory, in the order of the run. run_id: empty for any."""
    found = []
    for folder in run.cycles.glob("*/*"):
        named = _ATTEMPT.fullmatch(folder.name)
        directory = AttemptDir(folder)
        if named is None or (spec := _spec(directory.spec)) is None:
            continue
        expected = run.attempt(spec.cycle, spec.attempt, spec.role).path
        if expected == folder and run_id in ("", spec.run_id):
            found.append(Record(directory, spec, read_result(directory, spec.token)))
    return sorted(found, key=lambda record: record.order)


def _spec(path: Path) -> WorkerSpec | None:
    try:
        return _specs.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def profile_of(record: Record) -> tuple[str, str] | None:
    """(JSON, sha256) of the profile in an attempt's spec; None if it no longer matches its recorded hash."""
    raw = msgspec.json.decode(record.directory.spec.read_bytes())
    text = msgspec.json.encode(raw["profile"], order="sorted")
    sha256 = hashlib.sha256(text).hexdigest()
    return (text.decode(), sha256) if sha256 == record.spec.profile_sha256 else None


def links(run: RunDir, records: Sequence[Record]) -> dict[str, Link]:
    """Every checkpoint that any file mentions, by its id. The checkpoint's own manifest takes precedence."""
    found: dict[str, Link] = {}
    for record in records:
        if record.spec.role == "train":
            found |= {link.facts.checkpoint_id: link for link in _made_by(record)}
    for path in run.checkpoints.glob("c*"):
        try:
            manifest, identity = read_manifest(path), Manifest.checkpoint_id(path)
        except (Damaged, OSError):
            continue
        facts = CheckpointFacts(
            identity,
            manifest.parent,
            manifest.cycle,
            manifest.step,
            run.relative(path),
            manifest.digest,
            manifest.bytes,
        )
        found[identity] = Link(facts, manifest.attempt, manifest.token)
    return found


def _made_by(record: Record) -> Iterator[Link]:
    spec, parent = record.spec, record.spec.head.checkpoint_id if record.spec.head else None
    last = record.result.checkpoint if record.result is not None else None
    seen = set()
    for ref in (*_checkpoints_in(record.directory.events), *([last] if last is not None else [])):
        if ref.checkpoint_id in seen or ref == spec.head:
            continue
        seen.add(ref.checkpoint_id)
        yield Link(
            CheckpointFacts(ref.checkpoint_id, parent, spec.cycle, ref.step, ref.path, ref.digest, 0),
            spec.attempt,
            spec.token,
        )
        parent = ref.checkpoint_id


def _checkpoints_in(events: Path) -> Iterator[CheckpointRef]:
    """Checkpoints in the events of an attempt, in order; torn lines are skipped."""
    try:
        lines = events.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        if b'"checkpoint"' not in line:
            continue
        try:
            event = _events.decode(line)
            if event.type == event_kinds.CHECKPOINT.name:
                data = event.data
                yield CheckpointRef(data["path"], event.step, data["checkpoint_id"], data["digest"])
        except (msgspec.DecodeError, KeyError):
            continue


def line_to(tip: str, known: Mapping[str, Link]) -> list[Link]:
    """The line of checkpoints that ends with `tip`, oldest first, as far back as it is known. (pure)"""
    line: list[Link] = []
    at: str | None = tip
    while at is not None and at in known:
        line.append(known[at])
        at = known[at].facts.parent
    return line[::-1]
