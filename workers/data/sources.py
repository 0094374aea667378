"""Reads tasks from files of JSON lines and from runs. Read-only; reports lines that cannot be read one by one."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.checkpoint import Damaged, verify
from state.layout import RunDir
from state.reader import Reader
from workers.data.data_set import is_header, read_header
from workers.data.record import BadLine, Origin, Record, parse_line
from workers.tasks.entry import BUFFERS_FILE, UNKNOWN_RATE
from workers.tasks.kinds import registry

MAX_LINE = 4 << 20
"""Most bytes of a line; the largest valid task has less than a tenth of that."""


@dataclass(frozen=True)
class Source:
    """path: absolute. name: as the user wrote it, for origins."""

    path: Path
    name: str

    @property
    def kind(self) -> str:
        return "run" if self.path.is_dir() else "tasks"


@dataclass(frozen=True)
class Item:
    """A task of a source, or why a line holds none (record None)."""

    line: int
    record: Record | None
    reason: str = ""
    text: str = ""


Note = Callable[[str], None]


def check_source(source: Source) -> None:
    """Raises LonghaulError (INPUT), before anything is read or written, if this cannot be a source."""
    if source.path.is_dir():
        if RunDir(source.path).store.is_file():
            return
        raise _no_source(source, "is a folder without a run in it")
    if not source.path.exists():
        raise _no_source(source, "is not there: neither a file nor a run of that name")
    if not source.path.is_file():  # reading a pipe would block, and a device never ends
        raise _no_source(source, "is not a plain file")


def fingerprint(source: Source) -> str:
    """SHA-256 of a file; for a run, the id of its head."""
    if source.kind == "run":
        reader = Reader.open(RunDir(source.path))
        try:
            head = reader.history().head
            return head.checkpoint_id if head else ""
        finally:
            reader.close()
    with durable.explained("cannot read", source.path, kept="everything"), source.path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_source(source: Source, note: Note) -> Iterator[Item]:
    """All items, in order. note: receives messages about the source as a whole."""
    if source.kind == "run":
        return _read_run(RunDir(source.path), note)
    return read_file(source, note)


# --- files -----------------------------------------------------------------------------------------------------------


def read_file(source: Source, note: Note) -> Iterator[Item]:
    """Items of a file of JSON lines. Skips empty lines; uses our header, if any, to detect a cut file."""
    stated, found = None, 0
    for number, content in _lines(source.path):
        if content is None:
            yield Item(number, None, "too_long", f"longer than {MAX_LINE >> 20} MB")
        elif number == 1 and is_header(content):
            header = read_header(content)
            stated = header.tasks if header else None
        elif content.strip():
            found += 1
            try:
                yield from (Item(number, _placed(one, source, number)) for one in parse_line(content))
            except BadLine as bad:
                is_torn = bad.reason == "not_json" and not content.endswith(b"\n")
                yield Item(number, None, "torn" if is_torn else bad.reason, str(bad))
    if stated is not None and stated != found:
        note(f"{source.name} holds {found} lines, its header says {stated}: it was cut or changed")


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """(number, content) of each line; None for one over the limit, which is never held whole."""
    with durable.explained("cannot read", path, kept="everything"), path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE and not line.endswith(b"\n"):
                while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                    pass
                yield number, None
            else:
                yield number, line


def _placed(record: Record, source: Source, line: int) -> Record:
    if record.origin.file:
        return record
    return replace(record, origin=replace(record.origin, file=source.name, line=line))


# --- runs ------------------------------------------------------------------------------------------------------------


def _read_run(run: RunDir, note: Note) -> Iterator[Item]:
    """The head's buffers, then tasks that only the store knows, then the tasks that the run had imported.

    Skips a task whose text came earlier: one place in a run is enough to count.
    """
    reader = Reader.open(run)
    try:
        history = reader.history()
        models = Models(reader)
        head = run.root / history.head.path if history.head else None
        given = {_same(record): record for record in _imported(run, note)}
        seen: set[tuple[str, str, tuple[str, ...]]] = set()
        number = 0
        for record in (*_buffers(head, note), *_examples(reader), *given.values()):
            if (text := _same(record)) in seen:
                continue
            seen.add(text)
            number += 1
            known = given.get(text)
            if known is not None:
                yield Item(number, replace(record, origin=known.origin, message=record.message or known.message))
                continue
            origin = Origin(run=run.name, run_id=history.run_id, step=record.step, model=models.before(record.step))
            yield Item(number, replace(record, origin=origin))
        if not number:
            note(f"run {run.name} holds no tasks yet")
    finally:
        reader.close()


def _same(record: Record) -> tuple[str, str, tuple[str, ...]]:
    return record.task, record.program, record.inputs


class Models:
    """Which model a step began from, by its checkpoints; pruned ones still have their row."""

    def __init__(self, reader: Reader) -> None:
        rows = reader.connection.execute("SELECT step, digest FROM checkpoints ORDER BY step").fetchall()
        self._steps, self._digests = [int(row[0]) for row in rows], [str(row[1]) for row in rows]

    def before(self, step: int) -> str:
        """Digest of the newest checkpoint before a step, for seeds that of step 0; empty if there is none."""
        # Seeding changes no weight: the checkpoint of step 0 holds the model that found the seeds.
        place = bisect_left(self._steps, max(step, 1))
        return self._digests[place - 1] if place else ""


class _Task(msgspec.Struct):
    """Decodes only the kind from a row of a buffer."""

    task: str


def _buffers(head: Path | None, note: Note) -> Iterator[Record]:
    if head is None:
        return
    try:
        verify(head, deep=False)
        lines = (head / BUFFERS_FILE).read_bytes().splitlines()
    except (Damaged, FileNotFoundError) as error:
        note(f"the buffers of {head.name} cannot be read ({error}): using only what the store knows")
        return
    unknown: Counter[str] = Counter()
    for line in lines:
        task = msgspec.json.decode(line, type=_Task).task
        if task in registry.names():
            yield replace(msgspec.json.decode(line, type=Record), form="")
        else:
            unknown[task] += 1
    for task, count in unknown.items():
        note(f"{count} tasks of {head.name} are of the kind {task!r}, which only its run knows: they are left out")


def _examples(reader: Reader) -> Iterator[Record]:
    """Tasks that were found, oldest first, including those that have left the buffers since."""
    names = registry.names()
    rows = reader.connection.execute(
        "SELECT task, step, program, input, output, solve_rate FROM examples"
        f" WHERE task IN ({', '.join('?' * len(names))}) ORDER BY step, example_id",
        names,
    )
    for task, step, program, input_, output, rate in rows:
        several = registry.kind_of(task).many_pairs
        yield Record(
            task=task,
            program=program,
            inputs=tuple(input_.split("\n")) if several else (input_,),
            outputs=tuple(output.split("\n")) if several else (output,),
            step=step,
            source="selfplay" if step else "seed",
            solve_rate=UNKNOWN_RATE if rate is None else rate,
        )


def _imported(run: RunDir, note: Note) -> Iterator[Record]:
    """The tasks that the run began with; a run that imported nothing has no such file."""
    if not run.imported.is_file():
        return
    for item in read_file(Source(run.imported, run.imported.name), note):
        if item.record is not None:
            yield item.record


def _no_source(source: Source, why: str) -> LonghaulError:
    return LonghaulError(
        f"{source.name} {why}",
        kept="everything; nothing was read",
        next_command="python -m orchestrator data --help",
        exit_code=ExitCode.INPUT,
    )
