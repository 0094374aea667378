"""Starts a worker process on this machine: own session, exactly five descriptors, a pidfd to wait on."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.contract import (
    ATTEMPT_VARIABLE,
    BY_BUS,
    CONTROL_FD,
    CONTROL_FD_VARIABLE,
    LIFELINE_FD,
    LIFELINE_FD_VARIABLE,
    TOKEN_VARIABLE,
)

SECRET_MARKS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")
COMMAND = (sys.executable, "-m", "workers")


@dataclass
class Handle:
    """A started process. The caller reaps it, and closes all three descriptors."""

    pid: int
    pidfd: int
    control: socket.socket
    lifeline: int
    """Write end; closing it ends the worker within a second."""


def clean_environment(owner: str, token: str, warm: str) -> dict[str, str]:
    """Our environment without other programs' secrets, with the worker's marks. warm: which imports to do first."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not any(mark in name.upper() for mark in SECRET_MARKS) or name.startswith("LONGHAUL_")
    }
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [here, kept.get("PYTHONPATH", "")]))
    return {
        "CUDA_DEVICE_ORDER": BY_BUS,
        **kept,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        ATTEMPT_VARIABLE: f"{owner}/{token}",
        TOKEN_VARIABLE: token,
        CONTROL_FD_VARIABLE: str(CONTROL_FD),
        LIFELINE_FD_VARIABLE: str(LIFELINE_FD),
        "LONGHAUL_WARM": warm,
    }


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
