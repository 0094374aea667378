"""Resident memory of this process, as the kernel reports it: now, its peak, and its peak since a reset. No torch."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

_highest = 0
"""Peak before the last reset: the kernel forgets it then, and so does `getrusage`."""


def reset_peak() -> None:
    """Start a new peak if the kernel allows it; otherwise the old one continues."""
    global _highest
    _highest = highest()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def resident_and_peak() -> tuple[int, int]:
    """Bytes now, and the peak since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return found.get("VmRSS", 0), found.get("VmHWM", 0)


def highest() -> int:
    """Peak bytes over the life of this process."""
    return max(_highest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
