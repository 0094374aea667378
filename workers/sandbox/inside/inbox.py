"""What a child has sent, until it is passed on to the parent.

It lies in one mapping that is wiped for each job and that no child inherits: nothing of an earlier program's answers is
in the memory of a later one.
"""

from __future__ import annotations

import mmap
import os

from .frames import FRAME, FRAME_HEAD, HEADER, MAX_BODY, MAX_REPLY, write_all

MOST_READ = 1 << 16
"""Bytes of one read: what a pipe holds."""


class Inbox:
    """Frames of one child after the other, checked where they lie."""

    def __init__(self) -> None:
        # Not a bytearray: that touches all of its pages, and every fork would copy their table entries.
        self._buffer = mmap.mmap(-1, MAX_REPLY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer.madvise(mmap.MADV_DONTFORK)
        self._whole = memoryview(self._buffer)
        self._start = [self._whole[:MOST_READ]]  # of most children this is read, once
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
        used = self._used
        if used == MAX_REPLY:
            return False
        count = os.readv(fd, [self._whole[used : used + MOST_READ]] if used else self._start)
        self._used = used + count
        return count > 0

    def check(self, expected: int) -> str | None:
        """Take note of whole frames; the answer says what is wrong with them, if anything."""
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
        """Send the header line and the frames as they lie, as one frame. Leaves if nobody reads."""
        head = HEADER.pack(len(line) + self._checked) + line
        frames = self._whole[: self._checked]
        try:
            sent = os.writev(fd, (head, frames))
        except BrokenPipeError:
            os._exit(0)
        if sent < len(head) + self._checked:
            write_all(fd, head[sent:])
            write_all(fd, frames[max(0, sent - len(head)) :])
