"""A file of lines between two processes that may be on two hosts: one appends, the other reads on from where it was.

Both open the file anew each time. On a network file system that is what makes a line that one host has written
visible to the other.
"""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 1 << 20
"""Read at one time; the rest comes with the next call."""


def append(path: Path, line: bytes) -> None:
    """Append `line`, which has no newline in it. Raises OSError where it does not fit."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        data = line + b"\n"
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


class LineReader:
    """Reads the lines that another process appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> list[bytes]:
        """Whole lines that were appended since the last call, without their newlines. None while there is no file."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(MAX_BYTES)
        except FileNotFoundError:
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.split(b"\n")[:-1]
