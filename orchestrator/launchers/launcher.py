"""What starts worker processes and looks after them: the seam behind which `local` is the first.

The master knows a worker by its handle alone, and asks a launcher for everything else. docs/extending.md shows how to
write one.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct


class Handle(Struct, frozen=True, omit_defaults=True):
    """Names one worker for this master and for the next. It is written down before the worker starts, and again after
    that, with what the launcher has added."""

    launcher: str
    """As `run.launcher` names it: the launcher that must be asked about this worker."""
    owner: str
    """Run and directory that the worker belongs to, by `copies.owner_of`."""
    token: str
    """The worker's own. `owner/token` marks all of its processes, in their environment."""
    pid: int = 0
    """Its process, a child of the master; 0: it has none. The master reaps every child that no handle names."""
    started: float = 0.0
    """UTC seconds at which that process began: a pid alone is used again."""
    job: str = ""
    """What names it where a pid does not, such as the job id of a batch system."""

    @property
    def id(self) -> str:
        return str(self.pid) if self.pid else self.job

    def __str__(self) -> str:
        return f"pid {self.pid}" if self.pid else f"job {self.job}"


@dataclass(frozen=True)
class Order:
    """A worker that shall be started."""

    handle: Handle
    """Still without `pid` and `job`."""
    command: tuple[str, ...]
    """Begins with an absolute path."""
    environment: Mapping[str, str]
    """All that it gets: variables of the master that it may see, and its marks."""
    log: Path
    """Where its output goes. The folder may not be there yet."""


@dataclass(frozen=True)
class Started:
    """A started worker. The three descriptors are the master's, which closes them."""

    handle: Handle
    control: socket.socket
    """Does not block. The worker has the other end as CONTROL_FD."""
    lifeline: int
    """Write end; the worker, which has the other as LIFELINE_FD, leaves within a second of its closing."""
    ended: int
    """Becomes readable when the worker has ended, as a pidfd does."""


@dataclass(frozen=True)
class Life:
    """What is known of a worker at a moment."""

    exit_code: int | None = None
    """None while it lives; negative for the signal that ended it."""
    is_stopped: bool = False
    """It lives, but SIGSTOP or a debugger holds it."""


@runtime_checkable
class Launcher(Protocol):
    """A class without arguments. Its methods never raise because a worker is gone, which may happen at any moment."""

    def start(self, order: Order) -> Started:
        """Start the worker in a session of its own. Raises OSError where that is refused."""

    def poll(self, handle: Handle) -> Life:
        """How it is. Never blocks; once it says an exit code, nothing that the worker started is left."""

    def signal(self, handle: Handle, number: int) -> None:
        """KILL goes to the worker and all of its session; any other signal to the worker alone."""

    def wait(self, handle: Handle, seconds: float | None = None) -> Life:
        """`poll`, after the worker's end or after so many seconds."""

    def adopt(self, owner: str, handles: Sequence[Handle]) -> list[Handle]:
        """What an earlier master started and still lives, so that this one can signal it and wait for it.

        handles: as that master wrote them down; one without `pid` and `job` may have been started or not. What carries
        the owner's mark and is not among them counts too, where it can be found.
        """
