"""Signals and keys become flags; the loop reads them. Imports next to nothing: it must be first.

SIGUSR1's default action is death, so its handler has to stand before the slow imports begin.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from types import FrameType

from orchestrator.streams import open_closed_ones

CTRL_X = b"\x18"
MAX_STOPS = 1000


class Signals:
    """Counts of what was asked for since the loop last looked."""

    def __init__(self) -> None:
        self.stops: list[float] = []
        """When each stop was asked for (monotonic): a burst is one, however late the loop comes to look."""
        self.checkpoint = 0
        self.hangup = 0
        self.resized = 0
        self.wake_reader, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH):
            signal.signal(number, self.handle)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        # A handler can interrupt this same thread while it holds a lock: Event.set() could then deadlock and
        # logging could re-enter its own write. A byte into a non-blocking pipe takes no lock, and wakes select().
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
        """Ends the loop's wait. Safe in a handler and in a thread."""
        with suppress(BlockingIOError):  # pipe full: the loop is being woken already
            os.write(self.wake_writer, b"!")

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.wake_reader, 4096):
                pass

    def take_stops(self) -> list[float]:
        """Moments of the stops since the last call. A signal between the two lines goes into the new list or the old
        one, and is counted once."""
        taken, self.stops = self.stops, []
        return taken

    def key(self, pressed: bytes) -> None:
        """A key read from the terminal."""
        if CTRL_X in pressed:
            self.checkpoint += 1


open_closed_ones()  # the wake-up pipe below would be the first to take a free standard descriptor
SIGNALS = Signals()
