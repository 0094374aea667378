"""Buffers a child's frames until they are passed on to the parent.

The buffer is a memory mapping that is wiped before each job and that children do not inherit, so a program never finds
an earlier program's answers in its memory.
"""

from __future__ import annotations

import mmap
import os

from .frames import FRAME, FRAME_HEAD, HEADER, MAX_BODY, MAX_REPLY, write_parts

MOST_READ = 1 << 16
"""Maximum bytes per read: the capacity of a pipe."""


class Inbox:
    """Collects and checks, in place, the frames of one child at a time."""

    def __init__(self) -> None:
        # Not a bytearray: it touches all of its pages, and every fork would copy their page table entries.
        self._buffer = mmap.mmap(-1, MAX_REPLY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer.madvise(mmap.MADV_DONTFORK)
        self._whole = memoryview(self._buffer)
        self._start = [self._whole[:MOST_READ]]  # most children need only this one read
        self._nonce = b""
        self._used = self._checked = 0
        self.sizes: list[int] = []
        """Sizes in bytes of the complete bodies received so far."""

    def open(self, nonce: bytes) -> None:
        """Wipe the previous job's data and expect frames with this nonce."""
        self._buffer[: self._used] = bytes(self._used)
        self._nonce = nonce
        self._used = self._checked = 0
        self.sizes = []

    def read(self, fd: int) -> bool:
        """Read available bytes; False at end of stream or when the buffer is full."""
        used = self._used
        if used == MAX_REPLY:
            return False
        count = os.readv(fd, [self._whole[used : used + MOST_READ]] if used else self._start)
        self._used = used + count
        return count > 0

    def check(self, expected: int) -> str | None:
        """Register complete frames; returns the protocol violation, if any."""
        while self._used - self._checked >= FRAME_HEAD:
            body = self._checked + FRAME_HEAD
            nonce, size = FRAME.unpack_from(self._buffer, self._checked)
            if nonce != self._nonce:
                return "bad nonce"
            if size > MAX_BODY:
                return "frame too large"
            if self._used - body < size:
                break
            self.sizes.append(size)
            self._checked = body + size
            if len(self.sizes) > expected:
                return "too many frames"
        return "flood" if self._used == MAX_REPLY else None

    def reply(self, fd: int, line: bytes) -> None:
        """Send the header line and the raw frames as one frame. Exits the process if the reader is gone."""
        write_parts(fd, (HEADER.pack(len(line) + self._checked) + line, self._whole[: self._checked]))
