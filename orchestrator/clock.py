"""Time as an argument: `utc()` for stored facts, `monotonic()` for durations."""

from __future__ import annotations

import time


class Clock:
    """The real clock; tests pass another one."""

    def utc(self) -> float:
        """Seconds since 1970, for facts that people read. Never subtract two of them to decide something."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that stands still while the machine is suspended."""
        return time.monotonic()
