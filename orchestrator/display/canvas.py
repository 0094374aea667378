"""Draws lines on the terminal's alternate screen. Writes only what has changed and never blocks on the terminal.

A stalled terminal (Ctrl+S, a hung ssh) must not stop the master. Writes therefore go through our own non-blocking
descriptor, frames are dropped while one is still being written, and any error turns the canvas off permanently.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from orchestrator.ready import is_writable

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?2004h\x1b[2J"
"""Alternate screen, no cursor, no line wrapping (a full last line would scroll the screen), pastes marked as such."""
LEAVE = "\x1b[0m\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[?1049l"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronised output: terminals that support it show the whole frame at once; others ignore it."""
PATIENCE_S = 0.05
"""How long a frame may wait for a terminal that is reading, since the kernel buffers only a few kilobytes.

After a timeout there is no more waiting until the terminal reads again.
"""
LAST_WORDS_S = 1.0
"""How long closing waits for a stalled terminal."""


Line = Sequence[tuple[int, str]]
"""(column, text) of the parts of a line, from left to right; each part is as wide as the way to the next one, and is
written only when it has changed."""


class Canvas:
    """Owns the terminal between `open` and `close`. After an error `is_open` is False and nothing is written."""

    def __init__(self, stream: IO[str]) -> None:
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.is_open = False
        self._shown: list[Line] = []
        self._size = (0, 0)
        self._pending = b""
        self._is_stalled = False
        self._owned = -1
        try:
            self._fd = stream.fileno()
        except (OSError, ValueError, AttributeError):
            self._fd = -1

    def open(self) -> None:
        """Enter the alternate screen. Leaves the canvas off if the stream is not a terminal."""
        try:
            if not os.isatty(self._fd):
                return
            self._owned = _own_descriptor(self._fd)
        except OSError:
            return
        self.is_open = True
        atexit.register(self.close)
        self._send(ENTER)

    @property
    def size(self) -> tuple[int, int]:
        """Current (columns, lines), or the last known ones if the terminal does not report them."""
        with suppress(OSError, ValueError):
            columns, lines = os.get_terminal_size(self._fd)
            if columns > 0 and lines > 0:
                return columns, lines
        return self._size if self._size != (0, 0) else (80, 24)

    def draw(self, lines: Sequence[Line], size: tuple[int, int]) -> bool:
        """Show `lines`, which must fit `size`. False if the terminal is not ready for another frame."""
        if not self.flush():
            return False
        out = []
        if size != self._size:
            self._size, self._shown = size, []
            out.append("\x1b[0m\x1b[2J")
        old = self._shown
        for row, parts in enumerate(lines[: size[1]]):
            if row < len(old) and [column for column, _ in old[row]] == [column for column, _ in parts]:
                out += [
                    f"\x1b[{row + 1};{column + 1}H\x1b[0m{text}\x1b[0m"
                    for (column, text), (_, before) in zip(parts, old[row], strict=True)
                    if text != before
                ]
            else:
                # Clear before writing: after a full line the cursor is still on its last column.
                line = "".join(text for _, text in parts)
                out.append(f"\x1b[{row + 1};1H\x1b[0m\x1b[K{line}\x1b[0m")
        out += [f"\x1b[{row + 1};1H\x1b[K" for row in range(len(lines), min(len(old), size[1]))]
        self._shown = list(lines[: size[1]])
        if out:
            self._send(BEGIN + "".join(out) + END)
        return True

    def start_anew(self) -> None:
        """Redraw everything in the next frame, because others may have written to the terminal (Ctrl+Z, fg)."""
        if self.flush():
            self._size, self._shown = (0, 0), []
            self._send(ENTER)

    def close(self) -> None:
        """Restore the normal screen. Safe to call twice, and after the terminal is gone."""
        if self.is_open:
            self._send(LEAVE)
            deadline = time.monotonic() + LAST_WORDS_S
            while self.is_open and not self.flush() and time.monotonic() < deadline:
                is_writable(self._owned, PATIENCE_S)
        self._off()

    def flush(self) -> bool:
        """Continue writing pending output. True if nothing is pending and the canvas is open."""
        deadline = time.monotonic() + (0.0 if self._is_stalled else PATIENCE_S)
        try:
            while self._pending and self.is_open:
                if is_writable(self._owned, max(0.0, deadline - time.monotonic())):
                    # In small portions, which rarely block even if the descriptor could not be made non-blocking.
                    written = os.write(self._owned, self._pending[:2048])
                    self._pending, self._is_stalled = self._pending[written:], False
                elif time.monotonic() >= deadline:
                    self._is_stalled = True
                    return False
        except BlockingIOError:
            return False
        except (OSError, ValueError):  # EIO, EPIPE, closed: the terminal is gone
            self._off()
        return self.is_open

    def _send(self, text: str) -> None:
        self._pending += text.encode(self.encoding, "replace")
        self.flush()

    def _off(self) -> None:
        if self._owned >= 0 and self._owned != self._fd:
            with suppress(OSError):
                os.close(self._owned)
        self._owned, self.is_open, self._pending = -1, False, b""
        atexit.unregister(self.close)


def _own_descriptor(fd: int) -> int:
    """Reopen the terminal, so that O_NONBLOCK does not affect the shell that shares `fd`."""
    with suppress(OSError):
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return fd
