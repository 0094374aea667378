"""One child under watch, from its fork until nothing more is wanted from it.

It is judged from outside: its CPU time is read from the kernel's clock of that process, which the child cannot touch.
"""

from __future__ import annotations

import select
import time

from .frames import Inbox

CPUCLOCK_SCHED = 2
"""Kind of clock in `clock_gettime` of another process: its scheduled time, exact to the nanosecond."""


class Watch:
    """Limits of each call of one child: CPU seconds decide, wall seconds are the safety net.

    Made before the fork: every page that the zygote writes while the child lives is copied, so that the way from the
    fork to the first wait must be short.
    """

    def __init__(self, inbox: Inbox, pipe: int, parent: int, *, expected: int, cpu_s: float, wall_s: float) -> None:
        self._inbox, self._pipe, self._parent = inbox, pipe, parent
        self._expected, self._cpu_s, self._wall_s = expected, cpu_s, wall_s
        self._clock = 0
        self._cpu_mark, self._wall_mark = 0.0, time.monotonic()
        self.cpu_spent: list[float] = []
        """CPU seconds of each call that sent its result."""
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)
        self._poll.register(parent, 0)  # hang-up is always reported
        self._first_wait = self._wait_ms(cpu_s, wall_s)

    def run(self, pid: int) -> str | None:
        """Collect results until the child ends (None) or must die (the reason). A closed `parent` is a reason."""
        ready = self._poll.poll(self._first_wait)
        self._clock = (~pid << 3) | CPUCLOCK_SCHED
        while True:
            if any(fd == self._parent for fd, _ in ready):
                return "parent gone"
            if ready:
                goes_on = self._inbox.read(self._pipe)
                if (wrong := self._inbox.check(self._expected)) is not None:
                    return wrong
                if not goes_on:
                    return None
                self._note_calls(len(self._inbox.sizes))
            cpu_left = self._cpu_s - (self._cpu() - self._cpu_mark)
            wall_left = self._wall_s - (time.monotonic() - self._wall_mark)
            if cpu_left <= 0:
                return "cpu"
            if wall_left <= 0:
                return "wall"
            ready = self._poll.poll(self._wait_ms(cpu_left, wall_left))

    @staticmethod
    def _wait_ms(cpu_left: float, wall_left: float) -> float:
        # CPU time runs no faster than the wall: one thread.
        return max(1.0, min(cpu_left, wall_left) * 1000)

    def _note_calls(self, count: int) -> None:
        while len(self.cpu_spent) < count:
            now = self._cpu()
            self.cpu_spent.append(round(now - self._cpu_mark, 6))
            self._cpu_mark, self._wall_mark = now, time.monotonic()

    def _cpu(self) -> float:
        """CPU seconds of the child so far; of a child that just ended, the last known."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return self._cpu_mark
