"""The clock that callers pass around: `utc()` for stored facts, `monotonic()` for durations."""

from __future__ import annotations

import time


class Clock:
    """The real clock; tests pass a fake one."""

    def utc(self) -> float:
        """Seconds since 1970, for facts that people read. Never base a decision on the difference of two."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that pauses while the machine is suspended."""
        return time.monotonic()
