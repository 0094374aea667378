"""Memory of this machine, or of our control group where that has less, as in a container."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Group:
    """Files of a control group. inactive: the line of `stat` with cached files, which make room when asked."""

    limit: Path
    used: Path
    stat: Path
    inactive: str


ROOT = Path("/sys/fs/cgroup")
GROUPS = (
    Group(ROOT / "memory.max", ROOT / "memory.current", ROOT / "memory.stat", "inactive_file"),
    Group(
        ROOT / "memory" / "memory.limit_in_bytes",
        ROOT / "memory" / "memory.usage_in_bytes",
        ROOT / "memory" / "memory.stat",
        "total_inactive_file",
    ),
)


def ram_total() -> int:
    """Bytes."""
    import psutil

    return min([int(psutil.virtual_memory().total), *(limit for one in GROUPS if (limit := _number(one.limit)))])


def ram_available() -> int:
    """Bytes that processes can take before others must give something up."""
    import psutil

    return min(
        [int(psutil.virtual_memory().available), *(left for one in GROUPS if (left := left_in(one)) is not None)]
    )


def left_in(group: Group) -> int | None:
    """Bytes below the limit of a group; None without one."""
    limit, used = _number(group.limit), _number(group.used)
    if limit is None or used is None:
        return None
    cached = 0
    with suppress(OSError, ValueError):
        lines = dict(line.split() for line in group.stat.read_text().splitlines())
        cached = int(lines.get(group.inactive, 0))
    return max(0, limit - max(0, used - cached))


def _number(file: Path) -> int | None:
    """None for a file that is not there, or says `max`."""
    with suppress(OSError):
        if (text := file.read_text().strip()).isdigit():
            return int(text)
    return None
