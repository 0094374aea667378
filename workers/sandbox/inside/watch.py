"""Watches one child from its fork to its last result, and enforces its limits.

CPU time comes from the kernel's clock of that process, which the child cannot change.
"""

from __future__ import annotations

from select import POLLIN, poll
from time import clock_gettime, monotonic

from .inbox import Inbox

CPUCLOCK_SCHED = 2
"""Clock type for `clock_gettime` on another process: its scheduled CPU time, in nanoseconds."""


class Watch:
    """Enforces the limits of each call: CPU seconds decide, wall seconds are the safety net.

    One object serves all children and is set up before the fork: the kernel copies every page that the zygote writes
    while a child lives, so little may happen between the fork and the first wait.
    """

    def __init__(self, inbox: Inbox, parent: int) -> None:
        self._inbox, self._parent = inbox, parent
        self._pipe = -1
        self._poll = poll()
        self._poll.register(parent, 0)  # hang-up is always reported
        self.cpu_spent: list[float] = []
        """CPU seconds of each call whose result has arrived."""

    def open(self, pipe: int, expected: int, cpu_s: float, wall_s: float) -> None:
        """Prepare for a child that sends `expected` results through this pipe."""
        if pipe != self._pipe:  # usually the same number, but the kernel does not guarantee it
            if self._pipe >= 0:
                self._poll.unregister(self._pipe)
            self._poll.register(pipe, POLLIN)
            self._pipe = pipe
        self._expected, self._cpu_s, self._wall_s = expected, cpu_s, wall_s
        self._first_wait = max(1.0, min(cpu_s, wall_s) * 1000)
        self.cpu_spent = []
        self._began = monotonic()

    def run(self, pid: int) -> str | None:
        """Collect results until the child ends (returns None) or must be killed (returns why, e.g. a closed parent)."""
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
                cpu = cpu_mark  # the child just ended
            wall = monotonic()
            while len(self.cpu_spent) < len(inbox.sizes):
                self.cpu_spent.append(round(cpu - cpu_mark, 6))
                cpu_mark, wall_mark = cpu, wall
            cpu_left, wall_left = self._cpu_s - (cpu - cpu_mark), self._wall_s - (wall - wall_mark)
            if cpu_left <= 0:
                return "cpu"
            if wall_left <= 0:
                return "wall"
            # With one thread, CPU time never runs faster than wall time.
            ready = self._poll.poll(max(1.0, min(cpu_left, wall_left) * 1000))
