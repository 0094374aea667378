"""Reads a file that another process appends to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class Tail:
    """Where reading goes on. A line counts once its end is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def lines(self) -> Iterator[bytes]:
        """What came since the last call, each line with its end; nothing while there is no file."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._place += len(raw)
                yield raw
