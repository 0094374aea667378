"""Frames on pipes: length and body between parent and zygote; nonce, length and body from a child.

The zygote holds the children's results in one mapping that it wipes after each job and that no child inherits: nothing
of an earlier program's answers lies in the memory of a later one.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from typing import Any

HEADER = struct.Struct("!I")
NONCE_BYTES = 32
FRAME_HEAD = NONCE_BYTES + HEADER.size
MAX_BODY = 1 << 20
"""Bytes of one result."""
MAX_REPLY = 16 << 20
"""Bytes of all results of one job."""


class Inbox:
    """What a child has sent, checked frame by frame where it lies."""

    def __init__(self) -> None:
        # Not a bytearray: that touches all of its pages, and every fork would copy their table entries.
        self._buffer = mmap.mmap(-1, MAX_REPLY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer.madvise(mmap.MADV_DONTFORK)
        self._nonce = b""
        self._used = self._checked = 0
        self.sizes: list[int] = []
        """Bytes of each whole body so far."""

    def open(self, nonce: bytes) -> None:
        """Wipe what the last job left and expect frames with this nonce."""
        self._buffer[: self._used] = bytes(self._used)
        self._nonce = nonce
        self._used = self._checked = 0
        self.sizes = []

    def read(self, fd: int) -> bool:
        """Read what has come; False at the end of the stream, or when the buffer is full."""
        with memoryview(self._buffer) as whole, whole[self._used : self._used + (1 << 16)] as free:
            count = os.readv(fd, [free]) if free else 0
        self._used += count
        return count > 0

    def check(self, expected: int) -> str | None:
        """Take note of whole frames; the answer says what is wrong with them, if anything."""
        while self._used - self._checked >= FRAME_HEAD:
            body = self._checked + FRAME_HEAD
            if self._buffer[self._checked : self._checked + NONCE_BYTES] != self._nonce:
                return "bad nonce"
            (size,) = HEADER.unpack_from(self._buffer, self._checked + NONCE_BYTES)
            if size > MAX_BODY:
                return "frame too large"
            if self._used - body < size:
                break
            self.sizes.append(size)
            self._checked = body + size
            if len(self.sizes) > expected:
                return "too many frames"
        return "flood" if self._used == MAX_REPLY else None

    def reply(self, fd: int, head: dict[str, Any]) -> None:
        """Send the header line and the frames as they lie, as one frame. Leaves if nobody reads."""
        line = json.dumps(head).encode() + b"\n"
        with memoryview(self._buffer) as whole, whole[: self._checked] as frames:
            write_all(fd, HEADER.pack(len(line) + self._checked) + line)
            write_all(fd, frames)


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
    head = _read_exactly(fd, HEADER.size)
    if head is None:
        return None
    body = _read_exactly(fd, HEADER.unpack(head)[0])
    return None if body is None else json.loads(body)


def _read_exactly(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        chunk = os.read(fd, size - len(parts))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)


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
