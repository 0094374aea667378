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
    """Limits of each call of one child: CPU seconds decide, wall seconds are the safety net."""

    def __init__(self, pid: int, *, cpu_s: float, wall_s: float) -> None:
        self._clock = (~pid << 3) | CPUCLOCK_SCHED
        self._cpu_s, self._wall_s = cpu_s, wall_s
        self._cpu_mark, self._wall_mark = 0.0, time.monotonic()
        self.cpu_spent: list[float] = []
        """CPU seconds of each call that sent its result."""

    def run(self, inbox: Inbox, pipe: int, parent: int, expected: int) -> str | None:
        """Collect results until the child ends (None) or must die (the reason). A closed `parent` is a reason."""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        poll.register(parent, 0)  # hang-up is always reported
        while True:
            cpu_left = self._cpu_s - (self._cpu() - self._cpu_mark)
            wall_left = self._wall_s - (time.monotonic() - self._wall_mark)
            if cpu_left <= 0:
                return "cpu"
            if wall_left <= 0:
                return "wall"
            ready = dict(poll.poll(max(1, min(cpu_left, wall_left) * 1000)))
            if parent in ready:
                return "parent gone"
            if pipe in ready:
                goes_on = inbox.read(pipe)
                if (wrong := inbox.check(expected)) is not None:
                    return wrong
                if not goes_on:
                    return None
                self._note_calls(len(inbox.sizes))

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
