"""SHA-256 of large files. A record spares reading an unchanged file again: hashing 6 GB takes seconds at every start.

A record is trusted while size, inode, modification and change time are the same. Programs can set the modification
time, but not the change time. A change within the same tick of the file system's clock as the one before would leave
no trace, so a file that had changed shortly before it was hashed gets no record (as in Git's index). What the records
cannot show is a disk that returns other bytes than were written.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path

import msgspec

from profiles.errors import LonghaulError
from state import durable
from state.cache import cache_root

log = logging.getLogger("worker")
SETTLED_NS = 2_000_000_000
"""A file must be unchanged for so long. Clocks of file systems tick in 10 ms, the coarsest in 2 s."""


class Record(msgspec.Struct, frozen=True):
    """What a file was like when it was hashed."""

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int
    sha256: str = ""


def sha256_of(path: Path) -> str:
    """In hex. Raises OSError if the file cannot be read."""
    place = path.resolve()
    before = _seen(place)
    known = _read(place)
    if known is not None and known == msgspec.structs.replace(before, sha256=known.sha256):
        return known.sha256
    begun_ns = time.time_ns()
    with place.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if _seen(place) == before and begun_ns - before.changed_ns >= SETTLED_NS:
        _write(msgspec.structs.replace(before, sha256=found))
    return found


def _seen(path: Path) -> Record:
    stat = path.stat()
    return Record(str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev)


def _place(path: str) -> Path:
    return cache_root() / "hashes" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"


def _read(path: Path) -> Record | None:
    """None if there is no record, or none that can be read."""
    try:
        return msgspec.json.decode(_place(str(path)).read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(record: Record) -> None:
    """Without a cache the file is hashed again at the next start."""
    place = _place(record.path)
    try:
        durable.make_dir(place.parent)
        durable.write_file(place, msgspec.json.encode(record) + b"\n")
    except (OSError, LonghaulError) as error:
        log.info("the hash of %s is not kept: %s", record.path, error)
