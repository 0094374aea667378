"""Frames on pipes: length + body between parent and zygote; nonce + length + body from a child."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from typing import Any

JOBS_FD, REPLIES_FD, RESULT_FD = 3, 4, 3
"""File descriptors: the first two in the zygote, the last in its child."""
HEADER = struct.Struct("!I")
JOB_HEAD = struct.Struct("!QIIddQ")
"""Header of a job: number, body bytes, number of calls (0: a script), CPU and wall seconds per call, bytes of address
space (0: the zygote's own limit)."""
NONCE_BYTES = 32
FRAME = struct.Struct(f"!{NONCE_BYTES}sI")
FRAME_HEAD = FRAME.size
MAX_BODY = 1 << 20
"""Maximum size of one result, in bytes."""
MAX_REPLY = 16 << 20
"""Maximum size of all results of one job, in bytes."""


def bodies(raw: bytes, sizes: list[int]) -> list[bytes]:
    """Split concatenated frames into their bodies of the given sizes."""
    found = []
    place = 0
    for size in sizes:
        place += FRAME_HEAD
        found.append(raw[place : place + size])
        place += size
    return found


def read_frame(fd: int) -> Any:
    """Read the next frame's JSON value; None at end of stream."""
    head = read_exactly(fd, HEADER.size)
    if head is None:
        return None
    body = read_exactly(fd, HEADER.unpack(head)[0])
    return None if body is None else json.loads(body)


def read_exactly(fd: int, size: int) -> bytes | None:
    """Read exactly `size` bytes; None if the stream ends first. A single read if all have arrived."""
    found = os.read(fd, size)
    while len(found) < size:
        chunk = os.read(fd, size - len(found))
        if not chunk:
            return None
        found += chunk
    return found


def write_frame(fd: int, value: Any) -> None:
    """Send a JSON value. Exits the process if the reader is gone."""
    body = json.dumps(value).encode()
    write_all(fd, HEADER.pack(len(body)) + body)


def write_parts(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write several pieces, usually in one system call. Exits the process if the reader is gone."""
    try:
        sent = os.writev(fd, parts)
    except BrokenPipeError:
        os._exit(0)
    for part in parts:
        if sent < len(part):
            write_all(fd, part[sent:])
        sent = max(0, sent - len(part))


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything. Exits the process if the reader is gone."""
    with memoryview(data) as view:
        sent = 0
        try:
            while sent < len(view):
                sent += os.write(fd, view[sent:])
        except BrokenPipeError:
            os._exit(0)
