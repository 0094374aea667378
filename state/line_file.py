"""A file of lines between two processes that may be on two hosts: one appends, the other reads on from where it was.

Both open the file anew each time. On a network file system that is what makes a line that one host has written
visible to the other.
"""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 1 << 20
"""Read at one time, unless a line is longer; the rest comes with the next call."""


def append(path: Path, line: bytes) -> None:
    """Append `line`, which has no newline in it. Raises OSError where it does not fit; it may then be there in part.

    Repeat a failed call with the same line: it completes what is there. After any other part, a new line begins.
    """
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        part = _unfinished(fd, len(line) + 1)
        data = line[len(part) :] + b"\n" if line.startswith(part) else b"\n" + line + b"\n"
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _unfinished(fd: int, at_most: int) -> bytes:
    """What follows the last newline of a file, as far as its last `at_most` bytes show."""
    size = os.fstat(fd).st_size
    return os.pread(fd, at_most, max(0, size - at_most)).rpartition(b"\n")[2]


class LineReader:
    """Reads the lines that another process appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> list[bytes]:
        """Whole lines that were appended since the last call, without their newlines. None while the file cannot be
        read: a network file system may fail once, and the next call reads on."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(MAX_BYTES)
                if b"\n" not in chunk:  # a longer line
                    chunk += file.readline()
        except OSError:
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.split(b"\n")[:-1]
