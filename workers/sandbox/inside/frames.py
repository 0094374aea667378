"""Frames on pipes: length and body between parent and zygote; nonce, length and body from a child."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

JOBS_FD, REPLIES_FD, RESULT_FD = 3, 4, 3
"""Descriptors of a zygote; the last one of its child."""
HEADER = struct.Struct("!I")
JOB_HEAD = struct.Struct("!QIId")
"""Before each job: its number, bytes that follow, calls that it makes, CPU seconds of each call."""
NONCE_BYTES = 32
FRAME = struct.Struct(f"!{NONCE_BYTES}sI")
FRAME_HEAD = FRAME.size
MAX_BODY = 1 << 20
"""Bytes of one result."""
MAX_REPLY = 16 << 20
"""Bytes of all results of one job."""


def bodies(raw: bytes, sizes: list[int]) -> list[bytes]:
    """The bodies of frames that lie one behind the other."""
    found = []
    place = 0
    for size in sizes:
        place += FRAME_HEAD
        found.append(raw[place : place + size])
        place += size
    return found


def read_frame(fd: int) -> Any:
    """The JSON value of the next frame; None at the end of the stream."""
    head = read_exactly(fd, HEADER.size)
    if head is None:
        return None
    body = read_exactly(fd, HEADER.unpack(head)[0])
    return None if body is None else json.loads(body)


def read_exactly(fd: int, size: int) -> bytes | None:
    """The next bytes; None if the stream ends before. One read, if all have come."""
    found = os.read(fd, size)
    while len(found) < size:
        chunk = os.read(fd, size - len(found))
        if not chunk:
            return None
        found += chunk
    return found


def write_frame(fd: int, value: Any) -> None:
    """Send a JSON value. Leaves if nobody reads."""
    body = json.dumps(value).encode()
    write_all(fd, HEADER.pack(len(body)) + body)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything. Leaves if nobody reads."""
    with memoryview(data) as view:
        sent = 0
        try:
            while sent < len(view):
                sent += os.write(fd, view[sent:])
        except BrokenPipeError:
            os._exit(0)
