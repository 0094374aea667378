"""A data set: one file of verified tasks, as JSON lines below a header that says what they are and where they come
from.

Written whole and renamed, after a back-up of the previous file: a kill at any point leaves the old file or the new one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from state import durable
from workers.data.record import Record, encode

KEEP_BACKUPS = 3
KEEP_IMPORTS = 100
"""Most imports that the header lists, the newest; each task also has its own origin."""
HEADER_START = b'{"format":"longhaul-tasks"'


class ImportFacts(Struct, frozen=True, kw_only=True):
    """One import of one source, counted in tasks: read = valid + conflict + all invalid, valid = added + duplicate."""

    source: str
    kind: str
    """`tasks` (a file) or `run`."""
    sha256: str = ""
    lines: int = 0
    read: int = 0
    valid: int = 0
    added: int = 0
    duplicate: int = 0
    conflict: int = 0
    invalid: dict[str, int] = {}
    at: float = 0.0


class Header(Struct, frozen=True, kw_only=True):
    """The first line. sha256 covers all bytes after it."""

    format: Literal["longhaul-tasks"] = "longhaul-tasks"
    version: int = 1
    revision: int = 1
    tasks: int = 0
    sha256: str = ""
    counts: dict[str, int] = {}
    """Tasks by kind."""
    checked_with: str = ""
    """Rules and Python under which everything was verified. Under others it is verified again before more is added."""
    inputs: str = ""
    """Hash of the sources and rules that it was made from, if the set must be remade when they change."""
    imports: tuple[ImportFacts, ...] = ()
    written_at: float = 0.0


@dataclass(frozen=True)
class DataSet:
    """A data set as read; a missing file is an empty set of revision 0."""

    path: Path
    header: Header
    records: tuple[Record, ...]
    content: bytes = b""
    """The file as it is."""


def is_header(line: bytes) -> bool:
    return line.startswith(HEADER_START)


def read_header(line: bytes) -> Header | None:
    """The header, or None if the line is not one. (pure)"""
    try:
        return msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_data_set(path: Path) -> DataSet:
    """The set, every byte verified. Raises LonghaulError (INPUT) if the file is not a data set, or was changed."""
    if not path.exists():
        return DataSet(path, Header(revision=0), ())
    with durable.explained("cannot read", path, kept="everything"):
        content = path.read_bytes()
    first, _, body = content.partition(b"\n")
    header = read_header(first) if is_header(first) else None
    if header is None:
        raise _unusable(path, "it has no header: it is a file of tasks, not a data set")
    if header.version > Header().version:
        raise _unusable(path, f"a newer program wrote it (version {header.version})")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise _unusable(path, f"it was cut or changed: its sha256 is not that of its {header.tasks} tasks")
    try:
        records = tuple(msgspec.json.decode(line, type=Record) for line in body.splitlines())
    except msgspec.DecodeError as error:
        raise _unusable(path, str(error)) from error
    return DataSet(path, header, records, content)


def write_data_set(old: DataSet, records: Sequence[Record], header: Header) -> DataSet:
    """Replace `old` by these records as the next revision. The old file becomes a back-up; only the newest are kept."""
    path = old.path
    durable.make_dir(path.parent)
    if old.content:
        durable.make_dir(backups_of(path))
        durable.write_file(backups_of(path) / f"{path.stem}-{old.header.revision:06d}{path.suffix}", old.content)
    body = b"".join(encode(record) + b"\n" for record in records)
    header = msgspec.structs.replace(
        header,
        revision=old.header.revision + 1,
        tasks=len(records),
        sha256=hashlib.sha256(body).hexdigest(),
        counts=dict(sorted(Counter(record.task for record in records).items())),
        imports=header.imports[-KEEP_IMPORTS:],
    )
    content = msgspec.json.encode(header) + b"\n" + body
    durable.write_file(path, content)
    for doomed in backup_files(path)[:-KEEP_BACKUPS]:
        durable.remove_tree(doomed, backups_of(path))
    return DataSet(path, header, tuple(records), content)


def backups_of(path: Path) -> Path:
    """Folder of the previous revisions."""
    return path.parent / "backups"


def backup_files(path: Path) -> list[Path]:
    """Oldest first."""
    return sorted(backups_of(path).glob(f"{path.stem}-[0-9][0-9][0-9][0-9][0-9][0-9]{path.suffix}"))


def check_target(path: Path) -> None:
    """Create the folder for a file to be written. Raises LonghaulError (INPUT) if the file cannot be created."""
    try:
        durable.make_dir(path.parent)
        why = "there is a folder of that name" if path.is_dir() else ""
    except (FileNotFoundError, NotADirectoryError) as error:
        why = f"{error.filename}: {error.strerror}"
    if why:
        raise LonghaulError(
            f"{path} cannot be written: {why}",
            kept="everything; nothing was written",
            next_command="the same command with another file",
            exit_code=ExitCode.INPUT,
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Allow one writer at a time. Raises LonghaulError (LOCKED) if there is another."""
    check_target(path)
    lock = path.with_name(f".{path.name}.lock")
    with durable.explained("cannot open the lock", lock, kept="everything"):
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LonghaulError(
                f"another command writes {path}",
                kept="everything; it goes on",
                next_command="the same command when it is done",
                exit_code=ExitCode.LOCKED,
            ) from None
        yield
    finally:
        os.close(fd)  # the file stays: unlinking it would let two in


def _unusable(path: Path, why: str) -> LonghaulError:
    return LonghaulError(
        f"{path} cannot be used as a data set: {why}",
        kept="the file, unchanged",
        next_command=f"python -m orchestrator data import {path} --into {path.with_stem(path.stem + '-new')}"
        "   (copies every valid line)",
        exit_code=ExitCode.INPUT,
    )
