"""Rollouts of one step on disk, durable before they are trained on: a later attempt need not generate them again.

First line: what they belong to. Then one record a line. Last line: the sha256 of all before it, so that a torn file
is known as such. Training always uses what was read back, so a reused file cannot give another result.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from state import durable
from state.crash import crash_point

Record = dict[str, Any]


class Header(Struct, frozen=True):
    """What must be equal for a file to be reused: the same step of the same run under the same profile and state."""

    run_id: str
    profile_sha256: str
    step: int
    reseeds: int = 0
    reductions: int = 0


def write(path: Path, header: Header, records: Sequence[Record]) -> None:
    """Write and fsync. The file appears under its own name at once: the trailer, not the name, says it is complete."""
    lines = [msgspec.json.encode(item) + b"\n" for item in (header, *records)]
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    durable.make_dir(path.parent)
    with durable.explained("cannot write rollouts", path, kept="the head, and the rollouts of earlier steps"):
        with path.open("wb") as file:
            for number, line in enumerate(lines):
                if number == len(lines) // 2:
                    file.flush()
                    crash_point("worker.rollouts_half")
                file.write(line)
            file.write(msgspec.json.encode({"sha256": digest}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        durable.fsync_dir(path.parent)


def read(path: Path, header: Header) -> list[Record] | None:
    """The records, or None where the file is missing, torn, or belongs to something else."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if not content.endswith(b"\n"):
        return None
    body, _, trailer = content[:-1].rpartition(b"\n")
    try:
        stated = msgspec.json.decode(trailer)["sha256"]
        if stated != hashlib.sha256(body + b"\n").hexdigest():
            return None
        first, *rest = body.split(b"\n")
        if msgspec.json.decode(first, type=Header) != header:
            return None
        return [msgspec.json.decode(line) for line in rest]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
