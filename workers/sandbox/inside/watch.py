"""One child under watch, from its fork until nothing more is wanted from it.

It is judged from outside: its CPU time is read from the kernel's clock of that process, which the child cannot touch.
"""

from __future__ import annotations

from select import POLLIN, poll
from time import clock_gettime, monotonic

from .inbox import Inbox

CPUCLOCK_SCHED = 2
"""Kind of clock in `clock_gettime` of another process: its scheduled time, exact to the nanosecond."""


class Watch:
    """Limits of each call of a child: CPU seconds decide, wall seconds are the safety net.

    One for all children, and opened before the fork: every page that the zygote writes while a child lives is copied,
    so that the way from the fork to the first wait must be short.
    """

    def __init__(self, inbox: Inbox, parent: int, wall_s: float) -> None:
        self._inbox, self._parent, self._wall_s = inbox, parent, wall_s
        self._pipe = -1
        self._poll = poll()
        self._poll.register(parent, 0)  # hang-up is always reported
        self.cpu_spent: list[float] = []
        """CPU seconds of each call that sent its result."""

    def open(self, pipe: int, expected: int, cpu_s: float) -> None:
        """Be ready for a child that sends `expected` results through this pipe."""
        if pipe != self._pipe:  # always the same number, but that is the kernel's business
            if self._pipe >= 0:
                self._poll.unregister(self._pipe)
            self._poll.register(pipe, POLLIN)
            self._pipe = pipe
        self._expected, self._cpu_s = expected, cpu_s
        self._first_wait = max(1.0, min(cpu_s, self._wall_s) * 1000)
        self.cpu_spent = []
        self._began = monotonic()

    def run(self, pid: int) -> str | None:
        """Collect results until the child ends (None) or must die (the reason). A closed `parent` is a reason."""
        ready = self._poll.poll(self._first_wait)
        inbox, clock = self._inbox, (~pid << 3) | CPUCLOCK_SCHED
        cpu_mark, wall_mark = 0.0, self._began
        while True:
            for fd, events in ready:
                if fd == self._parent:
                    return "parent gone"
                if not events & POLLIN or not inbox.read(fd):
                    return None
                if (wrong := inbox.check(self._expected)) is not None:
                    return wrong
            try:
                cpu = clock_gettime(clock)
            except OSError:
                cpu = cpu_mark  # it just ended
            wall = monotonic()
            while len(self.cpu_spent) < len(inbox.sizes):
                self.cpu_spent.append(round(cpu - cpu_mark, 6))
                cpu_mark, wall_mark = cpu, wall
            cpu_left, wall_left = self._cpu_s - (cpu - cpu_mark), self._wall_s - (wall - wall_mark)
            if cpu_left <= 0:
                return "cpu"
            if wall_left <= 0:
                return "wall"
            # CPU time runs no faster than the wall: one thread.
            ready = self._poll.poll(max(1.0, min(cpu_left, wall_left) * 1000))
