"""Writes the files of a new job: all of them, or none, whatever interrupts."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.path_errors import writing
from state import durable

KEPT = "everything that was there; nothing was written"
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def in_the_way(folder: Path, names: Collection[str]) -> list[str]:
    """The files that would be overwritten."""
    return sorted(name for name in names if os.path.lexists(folder / name))


def entries_of(folder: Path) -> list[str]:
    """What is in a folder, without hidden files; empty if it is not there."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except FileNotFoundError:
        return []


def write_all(folder: Path, texts: Mapping[str, str]) -> None:
    """Write each file, and make the folder if it is not there.

    Everything is on disk in a hidden folder before the first file gets its name. Signals wait until all is done.
    Raises LonghaulError (INPUT, PERMISSION, DISK); nothing is then left behind.
    """
    with _undisturbed(), writing(folder, KEPT), _made(folder):
        with tempfile.TemporaryDirectory(prefix=".init-", dir=folder) as staged:
            for name, text in texts.items():
                durable.write_new_file(Path(staged) / name, text.encode())
            for name in texts:
                (Path(staged) / name).replace(folder / name)
        durable.fsync_dir(folder)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder and those above it; after a failure, those that were made here are gone again."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for one in new:
            with suppress(OSError):
                one.rmdir()
        raise


@contextmanager
def _undisturbed() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
