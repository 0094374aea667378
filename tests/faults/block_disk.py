"""A disk that remembers every write: a file system of one file, on which a loop device and a real file system stand.

    python -m tests.faults.block_disk MOUNT_POINT IMAGE LOG MARK

Serves `MOUNT_POINT/disk`, whose content is IMAGE, until it is unmounted. LOG gets each write and each flush; with a
flush, the size of the file MARK at that moment. Speaks FUSE to /dev/fuse itself, and needs root.
Source: https://docs.kernel.org/filesystems/fuse.html, include/uapi/linux/fuse.h (7.31).
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = b"disk"
ROOT, DISK = 1, 2
"""Numbers of the two inodes."""
MOST = 1 << 20
"""Bytes of one write, at the most."""
SECTOR = 4096
"""A disk writes so many bytes whole or not at all. With 512, half of a superblock may be new, and ext4 wants fsck."""
_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY, _RANGE = struct.Struct("<QQQQII"), struct.Struct("<QQIIQII")
_RECORD = struct.Struct("<cQQ")
WRITE, FLUSH = b"w", b"f"
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITES, STATFS, RELEASE, FSYNC = 1, 2, 3, 4, 14, 15, 16, 17, 18, 20
FLUSHES, INIT, OPENDIR, RELEASEDIR, INTERRUPT, DESTROY, BATCH_FORGET = 25, 26, 27, 29, 36, 38, 42
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22


@dataclass(frozen=True)
class Record:
    """One write (offset, data), or one flush (data is empty; mark is what the file MARK held, in bytes)."""

    offset: int
    data: bytes
    mark: int = -1

    @property
    def is_flush(self) -> bool:
        return self.mark >= 0


def records(log: Path) -> Iterator[Record]:
    content = log.read_bytes()
    at = 0
    while at + _RECORD.size <= len(content):
        kind, first, second = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        if kind == FLUSH:
            yield Record(0, b"", first)
        else:
            yield Record(first, content[at : at + second])
            at += second


def after_cut(before: Path, log: Sequence[Record], count: int, draw: random.Random | None, into: Path) -> None:
    """Write the image that the disk holds if power fails after so many records.

    Everything before the last flush is there. Of what came since, any sectors are there in any order that `draw`
    chooses; None: nothing is.
    """
    flushed = max((number for number in range(count) if log[number].is_flush), default=-1) + 1
    into.unlink(missing_ok=True)
    subprocess.run(["cp", "--sparse=always", before, into], check=True)
    with into.open("r+b") as image:
        for record in log[:flushed]:
            _put(image.fileno(), record)
        if draw is None:
            return
        since = [one for record in log[flushed:count] for one in _parts(record, draw)]
        draw.shuffle(since)
        for record in since[: draw.randrange(len(since) + 1)]:
            _put(image.fileno(), record)


def _parts(record: Record, draw: random.Random) -> list[Record]:
    """A write as the disk may tear it."""
    if record.is_flush or draw.random() < 0.5:
        return [] if record.is_flush else [record]
    edges = range(-record.offset % SECTOR, len(record.data), SECTOR)
    cut = draw.choice(edges) if edges else 0
    return [Record(record.offset, record.data[:cut]), Record(record.offset + cut, record.data[cut:])]


def _put(fd: int, record: Record) -> None:
    if record.data:
        os.pwrite(fd, record.data, record.offset)


# --- the server ------------------------------------------------------------------------------------------------------


def serve(point: Path, image: Path, log: Path, mark: Path) -> None:
    fuse, disk = os.open("/dev/fuse", os.O_RDWR), os.open(image, os.O_RDWR)
    options = f"fd={fuse},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"disk", os.fsencode(point), b"fuse.disk", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount", str(point))
    with log.open("wb", buffering=0) as made:
        while request := _read(fuse):
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            answer = _answer(opcode, node, request[_IN.size :], disk, made.fileno(), mark)
            if answer is None:
                continue
            number, data = (answer, b"") if isinstance(answer, int) else (0, answer)
            os.write(fuse, _OUT.pack(_OUT.size + len(data), -number, unique) + data)


def _read(fuse: int) -> bytes:
    while True:
        try:
            return os.read(fuse, MOST + 4096)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return b""
            if error.errno != errno.ENOENT:  # a request that was taken back
                raise


def _answer(opcode: int, node: int, body: bytes, disk: int, log: int, mark: Path) -> bytes | int | None:
    """What is sent back: data, or a number of an error. None: this kind of request gets no answer."""
    if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
        return None
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, BIG_WRITES | MAX_PAGES, 16, 12, MOST, 1, MOST >> 12, 0, 0)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != NAME:
            return errno.ENOENT
        return _ENTRY.pack(DISK, 0, 3600, 3600, 0, 0) + _attributes(DISK, disk)
    if opcode in (GETATTR, SETATTR):
        return struct.pack("<QII", 3600, 0, 0) + _attributes(node, disk)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", node, 0, 0)
    if opcode == READ:
        _, offset, size, *_ = _RANGE.unpack_from(body)
        return os.pread(disk, size, offset)
    if opcode == WRITES:
        _, offset, size, *_ = _RANGE.unpack_from(body)
        data = body[_RANGE.size : _RANGE.size + size]
        os.write(log, _RECORD.pack(WRITE, offset, size) + data)
        os.pwrite(disk, data, offset)
        return struct.pack("<II", size, 0)
    if opcode == FSYNC:
        os.write(log, _RECORD.pack(FLUSH, mark.stat().st_size if mark.exists() else 0, 0))
        return b""
    return b"" if opcode in (RELEASE, RELEASEDIR, FLUSHES, DESTROY) else errno.ENOSYS


def _attributes(node: int, disk: int) -> bytes:
    size = os.fstat(disk).st_size if node == DISK else 0
    mode = stat.S_IFREG | 0o600 if node == DISK else stat.S_IFDIR | 0o700
    return _ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:]))
