"""The launcher interface, which starts and supervises worker processes. `local` is the default implementation.

The master knows a worker only by its handle, and asks the launcher for everything else. docs/extending.md shows how to
write one.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from state.layout import AttemptDir


class Handle(Struct, frozen=True, omit_defaults=True):
    """Identifies one worker to this master and the next. It is saved before the worker starts, and saved again after
    the start with the fields that the launcher adds."""

    launcher: str
    """The launcher of this worker, as named in `launch.launcher`."""
    owner: str
    """The run and directory that the worker belongs to; see `copies.owner_of`."""
    token: str
    """Unique to this worker. `owner/token` marks all of its processes, in their environment."""
    pid: int = 0
    """Its process, a child of the master; 0: none. The master reaps every child that no handle names."""
    started: float = 0.0
    """UTC seconds at which that process started, because the system may reuse a pid."""
    job: str = ""
    """Identifies a worker without a pid, such as the job id of a batch system."""
    spec_sha256: str = ""
    """sha256 of its spec.json, if the worker was started for that spec."""

    @property
    def id(self) -> str:
        return str(self.pid) if self.pid else self.job

    def __str__(self) -> str:
        return f"pid {self.pid}" if self.pid else f"job {self.job}"


@dataclass(frozen=True)
class Order:
    """A request to start a worker."""

    handle: Handle
    """Does not have `pid` or `job` yet."""
    command: tuple[str, ...]
    """Begins with an absolute path."""
    environment: Mapping[str, str]
    """Its complete environment: the master's variables that it may see, and its marks."""
    log: Path
    """File for its output. The folder may not exist yet."""
    directory: AttemptDir | None = None
    """Directory of its attempt, which contains spec.json; None: the worker has no task yet."""
    avoid: tuple[str, ...] = ()
    """Nodes that failed recently, the newest failure first."""
    avoid_slow: tuple[str, ...] = ()
    """Nodes that were slow recently, the newest first: to be avoided as far as enough others are left."""
    ending_s: float = 0.0
    """Seconds that a step and its checkpoint take, so that the worker ends in time; 0: not known yet."""
    is_on_each_host: bool = False
    """Start the command itself on each host of `run.hosts`, as a check of all nodes needs it. Otherwise the first host
    gets the command and every other a follower."""


@dataclass(frozen=True)
class Started:
    """A started worker. The master owns the three descriptors and closes them."""

    handle: Handle
    control: socket.socket
    """Non-blocking. The worker has the other end as CONTROL_FD."""
    lifeline: int | None
    """Write end of a pipe; the worker has the read end as LIFELINE_FD and exits within a second after this end closes.
    None: the worker outlives the master."""
    ended: int
    """Becomes readable when the worker ends, as a pidfd does."""


@dataclass(frozen=True)
class Life:
    """The state of a worker at one moment."""

    exit_code: int | None = None
    """None while it lives; -N if signal N ended it."""
    is_stopped: bool = False
    """It is alive, but stopped by SIGSTOP or a debugger."""
    waits: str = ""
    """Why it is not running now, in the scheduler's words; its deadlines pause. Empty: it is running."""
    cause: str = ""
    """Why it ended, if the exit code does not say: one of `orchestrator.launchers.job_end.Cause`."""
    nodes: tuple[str, ...] = ()
    """Nodes that failed while it ran on them."""
    text: str = ""
    """Details of its end or its nodes, for the user."""


@runtime_checkable
class Launcher(Protocol):
    """Implement this as a class whose constructor takes the profile. Its methods never raise because a worker is gone:
    a worker may end at any moment."""

    def start(self, order: Order) -> Started:
        """Start the worker in its own session. Raises OSError if the system refuses."""

    def poll(self, handle: Handle) -> Life:
        """The worker's state. Never blocks. Once it returns an exit code, no process of the worker is left."""

    def signal(self, handle: Handle, number: int) -> None:
        """Send a signal: KILL to the worker and its whole session, any other signal only to the worker."""

    def wait(self, handle: Handle, seconds: float | None = None) -> Life:
        """Wait until the worker ends or `seconds` pass, then return `poll`."""

    def adopt(self, owner: str, handles: Sequence[Handle]) -> list[Handle]:
        """Find workers of an earlier master that still live, so that this one can signal them and wait for them.

        handles: as that master saved them; the worker of one without `pid` and `job` may or may not have started.
        Return processes with the owner's mark too, where the launcher can find them, even if no handle names them.
        """


@runtime_checkable
class BatchLauncher(Launcher, Protocol):
    """A launcher whose workers outlive the master. It starts workers only with a task, so there is no warm standby."""

    def attach(self, handle: Handle, directory: AttemptDir) -> Started | None:
        """Reconnect to a worker that a dead master submitted. None: that worker no longer exists.

        directory: of its attempt. Raises LonghaulError (CLUSTER) if the scheduler does not answer.
        """
