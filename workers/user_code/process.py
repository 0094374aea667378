"""A process that runs the user's code, as the trainer sees it: framed messages, its end, and nothing that it leaves."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from state import python
from workers.user_code.frames import Frames, frame

WATCHER_S = 1.0
"""What the watcher gets for ending by itself, after the process has closed its socket."""
END_S = 15.0
CHUNK = 1 << 20
Reply = TypeVar("Reply")


class Process(Generic[Reply]):
    """A process with its watcher (`watcher.py`), which dies with us: we hold its lifeline."""

    def __init__(self, host: str, setup: Struct, decode: Callable[[bytes], Reply], log: Path, cwd: Path) -> None:
        """host: the module whose `main` serves the socket. setup: what it is told first. decode: reads its frames.

        Raises OSError if the system refuses.
        """
        self.is_ready = self.is_gone = False
        self.started_at = self.heard_at = time.monotonic()
        self.pinged_at = 0.0
        self.pong: int | None = None
        self.caller_pid = 0
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        lifeline, self._lifeline = os.pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._watcher = subprocess.Popen(
                python.command(
                    "workers.user_code.watcher", host, str(theirs.fileno()), str(lifeline), str(log.absolute())
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=cwd,
                env={**python.finding_us(os.environ), "PYTHONUNBUFFERED": "1"},
                pass_fds=(theirs.fileno(), lifeline),
                process_group=0,
            )
        except OSError:
            self._socket.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self._out = bytearray()
        self._frames = Frames()
        self._how = ""
        self._decode = decode
        self.send(setup)

    def send(self, message: Struct) -> None:
        """Queue it; `wait` writes. Raises what `frame` raises."""
        self._out += frame(message)

    def wait(self, wake: int, until: float) -> Iterable[Reply]:
        """Write what is queued, and return what was read by `until`, by a wake-up or by the end of the process."""
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            selector.register(self._socket, events)
            left = None if until == float("inf") else max(0.0, until - time.monotonic())
            selector.select(left)
        drain(wake)
        self._write()
        return self._read()

    def _write(self) -> None:
        try:
            while self._out:
                del self._out[: self._socket.send(self._out[:CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True

    def _read(self) -> list[Reply]:
        found: list[Reply] = []
        try:
            while data := self._socket.recv(CHUNK):
                found += [self._decode(body) for body in self._frames.feed(data)]
                self.heard_at = time.monotonic()
            self.is_gone = True
        except BlockingIOError:
            pass
        except (OSError, ValueError):  # reset: it ended before it read all; or a function wrote to our descriptor
            self.is_gone = True
        return found

    def end(self) -> str:
        """Kill it with everything below it, and say how it had ended. Safe to repeat."""
        if self._how:
            return self._how
        if self.is_gone:  # the watcher sees it too, and knows how it ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watcher.wait(WATCHER_S)
        os.close(self._lifeline)
        try:
            code = self._watcher.wait(END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._watcher.pid, signal.SIGKILL)
            code = self._watcher.wait()
        if code < 0:  # somebody killed the watcher, so nobody ended what it watched
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._watcher.pid, signal.SIGKILL)
        self._socket.close()
        self.is_gone = True
        self._how = _ending(code)
        return self._how


def _ending(code: int) -> str:
    """How a process ended, by its watcher's exit code. (pure)"""
    number = -code if code < 0 else code - 128
    if number > 0:
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            pass
    return f"ended with exit code {code}"


def drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, CHUNK):
            pass
