"""Detects a copied run directory, and gives each a mark for its processes. `cp -r` also copies the run id.

A directory is identified by its device and inode, which a move within a file system keeps and a copy changes.
"""

from __future__ import annotations

import os

import msgspec

from state import durable
from state.layout import RunDir


class Place(msgspec.Struct, frozen=True):
    """Where a master last ran this run."""

    path: str
    device: int
    inode: int


def owner_of(run: RunDir, run_id: str) -> str:
    """The mark of this directory's processes, which they carry in their environment."""
    place = here(run)
    return f"{run_id}@{place.device:x}.{place.inode:x}"


def here(run: RunDir) -> Place:
    facts = run.root.stat()
    return Place(os.path.realpath(run.root), facts.st_dev, facts.st_ino)


def is_copy(before: Place, now: Place) -> bool:
    """Whether the directory differs from the last master's. (pure)

    A reboot or a mount may change only the device number. On another device, equal inodes may be a coincidence.
    """
    return before.inode != now.inode or (before.device != now.device and before.path != now.path)


def noticed(run: RunDir) -> list[str]:
    """Report whether this directory is a copy, as at most one line, and record its place."""
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
