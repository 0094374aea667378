"""A terminal in memory: a program on a real pseudo-terminal, and what a person would see of it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pyte

from tests import REPOSITORY

PATIENCE_S = 10.0


class TwoScreens(pyte.Screen):
    """pyte's screen with the alternate screen, which pyte leaves out."""

    is_alternate = False

    def set_mode(self, *modes: int, **options: Any) -> None:
        super().set_mode(*modes, **options)
        if 1049 in modes and options.get("private") and not self.is_alternate:
            self.is_alternate = True
            self.normal = deepcopy(self.buffer), self.cursor.x, self.cursor.y
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **options: Any) -> None:
        super().reset_mode(*modes, **options)
        if 1049 in modes and options.get("private") and self.is_alternate:
            self.is_alternate = False
            buffer, self.cursor.x, self.cursor.y = self.normal
            self.buffer.clear()
            self.buffer.update(buffer)


class Terminal:
    """Runs `python arguments...` with a pseudo-terminal as its output; commands go in by a pipe, one a line."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24, input_is_terminal: bool = False) -> None:
        self.master, slave = pty.openpty()
        self._set_size(slave, columns, lines)
        self.screen = TwoScreens(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.is_reading = True
        """False: a terminal that takes nothing, as after Ctrl+S."""
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=slave if input_is_terminal else subprocess.PIPE, stdout=slave, stderr=subprocess.PIPE,
            start_new_session=True, cwd=REPOSITORY,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONUTF8": "1"},
        )  # fmt: skip
        os.close(slave)

    @staticmethod
    def _set_size(fd: int, columns: int, lines: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self._set_size(self.master, columns, lines)
        self.screen.resize(lines, columns)

    def order(self, command: str) -> str:
        """Send a line to the program, and return what it answers on stderr. Reads the screen meanwhile."""
        assert self.process.stdin is not None and self.process.stderr is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        sources = [self.master, self.process.stderr] if self.is_reading else [self.process.stderr]
        while self.process.stderr not in select.select(sources, [], [], PATIENCE_S)[0]:
            if not self.read():
                break
        answer = self.process.stderr.readline().decode().strip()
        self.read()
        return answer

    def read(self, seconds: float = 0.0) -> bool:
        """Take in what was written; waits up to `seconds` for the first of it. False at the end."""
        while self.is_reading and select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return False
            self.raw += data
            self._stream.feed(data)
            seconds = 0.0
        return True

    def until(self, condition: Callable[[], bool]) -> None:
        """Read until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            is_open = self.read(0.05)
            assert is_open or condition(), f"the program ended: {self.text}"
            assert time.monotonic() < deadline, f"never came; the screen shows:\n{self.text}"

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stderr):
            if stream is not None:
                stream.close()
        if self.master >= 0:
            os.close(self.master)
            self.master = -1
