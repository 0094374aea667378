"""Rollouts of one step on disk, durable before they are trained on, so that a later attempt can reuse them.

First line: a header with what they belong to. Then one record per line. Last line: the SHA-256 of everything before it,
which exposes a torn file. Training always uses what was read back, so a reused file gives the same result.
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
    """What must match before a file is reused: the same step of the same run, profile and state."""

    run_id: str
    profile_sha256: str
    step: int
    reseeds: int = 0
    reductions: int = 0


def write(path: Path, header: Header, records: Sequence[Record]) -> None:
    """Write and fsync. The file has its final name from the start; it is complete once it has the trailer."""
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
    """The records, or None if the file is missing, torn, or does not match the header."""
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
