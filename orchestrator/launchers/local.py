"""Starts a worker process on this machine: own session, exactly five descriptors, a pidfd to wait on."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.launchers.environment import clean_environment
from state import python
from workers.contract import CONTROL_FD, LIFELINE_FD

COMMAND = tuple(python.command("workers"))


@dataclass
class Handle:
    """A started process. The caller reaps it, and closes all three descriptors."""

    pid: int
    pidfd: int
    control: socket.socket
    lifeline: int
    """Write end; closing it ends the worker within a second."""


def spawn(owner: str, token: str, log: Path, warm: str, command: Sequence[str] = COMMAND) -> Handle:
    """Start a worker. Call from the main thread: PDEATHSIG is tied to the thread that forks.

    Raises OSError where the system refuses (process or descriptor limit reached).
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    lifeline_reader, lifeline = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # Above 10, so that no source is overwritten by a target before its turn.
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (null, out, theirs.fileno(), lifeline_reader)]
    devnull, output, control, life = sources
    try:
        pid = os.posix_spawn(
            command[0],
            list(command),
            clean_environment(owner, token, warm),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, devnull, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                (os.POSIX_SPAWN_DUP2, control, CONTROL_FD),
                (os.POSIX_SPAWN_DUP2, life, LIFELINE_FD),
            ],
            setsid=True,
            # Handlers fall back to the default on exec. Blocked until the worker ignores them itself: a TERM to every
            # process of a service must not kill one whose interpreter is still starting.
            setsigmask=(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1),
        )
    except OSError:
        os.close(lifeline)
        ours.close()
        raise
    finally:
        theirs.close()
        for fd in (null, out, lifeline_reader, *sources):
            os.close(fd)
    return Handle(pid=pid, pidfd=os.pidfd_open(pid), control=ours, lifeline=lifeline)
