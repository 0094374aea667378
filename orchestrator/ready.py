"""Waits for descriptors with poll, because `select` only supports descriptors up to 1,023."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def wait_for_any(sources: Iterable[int | HasFileno], seconds: float | None) -> set[int]:
    """Wait until a descriptor is readable or closed by its peer. seconds: timeout; None waits forever."""
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else math.ceil(seconds * 1000))}


def is_readable(fd: int) -> bool:
    """Whether a read returns at once, possibly with end of file or an error."""
    return bool(wait_for_any([fd], 0))


def is_writable(fd: int, seconds: float = 0.0) -> bool:
    """Whether a write of PIPE_BUF bytes returns at once, possibly with an error."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(math.ceil(seconds * 1000)))
