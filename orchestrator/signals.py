"""Turns signals and keys into flags for the loop. Imports very little, because it must be loaded first.

By default SIGUSR1 kills the process, so its handler must be installed before the slow imports.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from types import FrameType

from orchestrator.streams import open_closed_ones

MAX_STOPS = 1000


class Signals:
    """Requests since the loop last looked."""

    def __init__(self) -> None:
        self.stops: list[float] = []
        """Monotonic time of each stop request, so that a burst counts as one however late the loop looks."""
        self.checkpoint = 0
        self.hangup = 0
        self.resized = 0
        self.wake_reader, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH):
            signal.signal(number, self.handle)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        # A handler may interrupt this thread while it holds a lock: Event.set() could deadlock, and logging could
        # re-enter its own write. Writing a byte to a non-blocking pipe takes no lock, and wakes the loop's poll().
        if number in (signal.SIGINT, signal.SIGTERM):
            if len(self.stops) < MAX_STOPS:
                self.stops.append(time.monotonic())
        elif number == signal.SIGUSR1:
            self.checkpoint += 1
        elif number == signal.SIGHUP:
            self.hangup += 1
        else:
            self.resized += 1
        self.wake()

    def wake(self) -> None:
        """End the loop's wait. Safe in a signal handler and in a thread."""
        with suppress(BlockingIOError):  # the pipe is full, so the loop will wake anyway
            os.write(self.wake_writer, b"!")

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.wake_reader, 4096):
                pass

    def take_stops(self) -> list[float]:
        """Times of the stop requests since the last call. A signal during the call is counted exactly once."""
        taken, self.stops = self.stops, []
        return taken


open_closed_ones()  # before the wake-up pipe below could get a free standard descriptor
SIGNALS = Signals()
