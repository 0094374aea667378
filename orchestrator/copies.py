"""Whose a process is, and whether this directory is a copy: a run's id alone tells neither, as `cp -r` copies it.

A directory is known by its device and inode. A move within a file system keeps them, a copy has others.
"""

from __future__ import annotations

import os

import msgspec

from state import durable
from state.layout import RunDir


class Place(msgspec.Struct, frozen=True):
    """Where a master last worked on this run."""

    path: str
    device: int
    inode: int


def owner_of(run: RunDir, run_id: str) -> str:
    """The mark of processes that work in this very directory. They carry it in their environment."""
    place = here(run)
    return f"{run_id}@{place.device:x}.{place.inode:x}"


def here(run: RunDir) -> Place:
    facts = run.root.stat()
    return Place(os.path.realpath(run.root), facts.st_dev, facts.st_ino)


def is_copy(before: Place, now: Place) -> bool:
    """Whether the directory is another than that of the last master. (pure)

    A device alone may be numbered anew by a reboot or a mount; with it, the inode may be the same by chance.
    """
    return before.inode != now.inode or (before.device != now.device and before.path != now.path)


def noticed(run: RunDir) -> list[str]:
    """A line if this is a copy of the directory in which the last master worked. Writes down where it is now."""
    now, before = here(run), _remembered(run)
    if before != now:
        durable.write_file(run.place, msgspec.json.encode(now))
    if before is None or not is_copy(before, now):
        return []
    where = "from here" if before.path == now.path else f"from {before.path}"
    return [
        f"this directory is a copy of a run that was last trained {where}; "
        "processes of the original are left alone, and what is trained here does not reach it"
    ]


def _remembered(run: RunDir) -> Place | None:
    try:
        return msgspec.json.decode(run.place.read_bytes(), type=Place)
    except (OSError, msgspec.MsgspecError):
        return None
