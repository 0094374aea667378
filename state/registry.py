"""Registers every stateful object whose state a checkpoint must hold.

A global or closure that changes between steps without being registered is a bug: it makes resume inexact.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from profiles.errors import ExitCode, LonghaulError


class Stateful(Protocol):
    """An object that can write all of its state to one file and read it back."""

    @property
    def filename(self) -> str: ...

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...


class Registry:
    """The stateful objects of one trainer, by file name, in order of registration."""

    def __init__(self) -> None:
        self._items: dict[str, Stateful] = {}

    def register(self, item: Stateful) -> None:
        """Raises ValueError if the name is taken or is not a plain file name."""
        name = item.filename
        if name in self._items:
            raise ValueError(f"two stateful objects use the file name {name!r}")
        if not name or name != Path(name).name or name.startswith(".") or name == "MANIFEST.json":
            raise ValueError(f"{name!r} cannot name a file of a checkpoint")
        self._items[name] = item

    def save(self, directory: Path) -> None:
        """Let every object write its file into `directory`. Raises LonghaulError if one does not."""
        for name, item in self._items.items():
            path = directory / name
            item.save(path)
            if path.is_symlink() or not path.is_file():
                raise LonghaulError(
                    f"{type(item).__name__} did not write its state to {name}",
                    kept="the head; this checkpoint was not made",
                    next_command="python -m orchestrator status",
                    exit_code=ExitCode.INTERNAL,
                )

    def load(
        self, directory: Path, manifest_filenames: Collection[str] | None = None, *, static: Collection[str] = ()
    ) -> None:
        """Let every object read its file back from a verified checkpoint.

        manifest_filenames: every file in the checkpoint; None skips the check for files that no object reads. static:
        files that are not state (a tokenizer, a config). Raises LonghaulError, before loading anything, naming the
        first file that is missing or that no object reads.
        """
        held = manifest_filenames
        missing = [
            name for name in self._items if not (directory / name).is_file() or (held is not None and name not in held)
        ]
        if missing:
            raise _mismatch(directory, f"has no {missing[0]}, which this program needs to resume")
        extra = sorted(set(held or ()) - set(self._items) - set(static))
        if extra:
            raise _mismatch(directory, f"holds {extra[0]}, which nothing in this program reads")
        for name, item in self._items.items():
            item.load(directory / name)


def _mismatch(directory: Path, text: str) -> LonghaulError:
    return LonghaulError(
        f"checkpoint {directory.name} {text}",
        kept="the checkpoint, unchanged; nothing was loaded",
        next_command="python -m orchestrator status",
        exit_code=ExitCode.INPUT,
    )
