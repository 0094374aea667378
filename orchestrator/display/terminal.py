"""Reads keys from the terminal in cbreak mode with signals enabled, and always restores its mode."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import termios
import tty
from contextlib import suppress
from typing import Any

from orchestrator.ready import is_readable


class Keyboard:
    """Reads single keys from standard input if it is a terminal. End of file closes it permanently."""

    def __init__(self) -> None:
        self.fd = -1
        self._saved: list[Any] | None = None
        with suppress(OSError, ValueError, termios.error):
            fd = sys.stdin.fileno()
            if os.isatty(fd):
                # Otherwise, accessing the terminal from the background would stop the process.
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                signal.signal(signal.SIGTTIN, signal.SIG_IGN)
                self._saved = termios.tcgetattr(fd)
                tty.setcbreak(fd, termios.TCSANOW)  # ISIG stays on: Ctrl+C is still a signal
                self._free_ctrl_x(fd)
                self.fd = fd
                atexit.register(self.close)

    @staticmethod
    def _free_ctrl_x(fd: int) -> None:
        """Disable extended control characters (Ctrl+V literal-next and others), so that Ctrl+X reaches us."""
        mode = termios.tcgetattr(fd)
        mode[3] &= ~termios.IEXTEN
        termios.tcsetattr(fd, termios.TCSANOW, mode)

    def sources(self) -> list[int]:
        return [self.fd] if self.fd >= 0 else []

    def read(self) -> bytes:
        """Keys pressed since the last call, or empty. End of file closes the keyboard."""
        if self.fd < 0 or not is_readable(self.fd):
            return b""
        try:
            keys = os.read(self.fd, 64)
        except OSError:
            keys = b""
        if not keys:
            self.close()
        return keys

    def close(self) -> None:
        """Restore the terminal. Safe to repeat."""
        fd, self.fd = self.fd, -1
        if fd >= 0 and self._saved is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(fd, termios.TCSANOW, self._saved)
