"""Runs workers as processes of this machine: each in its own session, with exactly five descriptors and a pidfd.

Processes that a worker starts are found by the mark in their environment, never by name.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from msgspec.structs import replace

from orchestrator.launchers.launcher import Handle, Life, Order, Started
from orchestrator.ready import wait_for_any
from profiles.schema import Profile
from workers.contract import ATTEMPT_VARIABLE, CONTROL_FD, LIFELINE_FD

SAME_START_S = 2.0
"""Tolerance for equal start times: they derive from clock ticks and a wall clock that may be adjusted."""
STRAYS_S = 5.0
"""Seconds to wait until killed processes are gone."""


class Local:
    """A launcher that starts workers as children of the master."""

    def __init__(self, profile: Profile) -> None:
        self._children: set[int] = set()
        """Pids of children not reaped yet; the system cannot reuse these."""

    def start(self, order: Order) -> Started:
        """Start a worker. Call from the main thread, because PDEATHSIG is tied to the thread that forks.

        Raises OSError if the system refuses (process or descriptor limit reached).
        """
        order.log.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        lifeline_reader, lifeline = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        out = os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Duplicate to 10 and above, so that no dup2 overwrites a source that is still needed.
        sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (null, out, theirs.fileno(), lifeline_reader)]
        devnull, output, control, life = sources
        try:
            pid = os.posix_spawn(
                order.command[0],
                order.command,
                order.environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, devnull, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                    (os.POSIX_SPAWN_DUP2, control, CONTROL_FD),
                    (os.POSIX_SPAWN_DUP2, life, LIFELINE_FD),
                ],
                setsid=True,
                # exec resets handlers to the default. Block the signals until the worker ignores them itself: a TERM
                # to every process of a service must not kill a worker whose interpreter is still starting.
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
        self._children.add(pid)
        handle = replace(order.handle, pid=pid, started=_started(pid))
        return Started(handle, control=ours, lifeline=lifeline, ended=os.pidfd_open(pid))

    def poll(self, handle: Handle) -> Life:
        if handle.pid not in self._children:
            return Life() if _is_there(handle) else Life(exit_code=0)
        try:
            pid, status = os.waitpid(handle.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = handle.pid, 0
        if pid == 0:
            return Life(is_stopped=_is_stopped(handle.pid))
        self._children.discard(handle.pid)
        self._end_what_it_left(handle)
        return Life(os.waitstatus_to_exitcode(status))

    def signal(self, handle: Handle, number: int) -> None:
        if handle.pid not in self._children and not _is_there(handle):
            return
        with suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL and os.getpgid(handle.pid) == handle.pid:
                os.killpg(handle.pid, number)
            else:
                os.kill(handle.pid, number)

    def wait(self, handle: Handle, seconds: float | None = None) -> Life:
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(handle.pid)
            try:
                wait_for_any([pidfd], seconds)
            finally:
                os.close(pidfd)
        return self.poll(handle)

    def adopt(self, owner: str, handles: Sequence[Handle]) -> list[Handle]:
        """Find processes by the mark only. This includes children of workers, and workers that were never saved."""
        found = []
        for process in strays(owner):
            with suppress(psutil.Error):
                _, _, token = process.environ().get(ATTEMPT_VARIABLE, "").partition("/")
                found.append(Handle("local", owner, token, process.pid, process.create_time()))
        return found

    def _end_what_it_left(self, handle: Handle) -> None:
        """Kill the rest of its session, then processes that left the session, such as sandboxes."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(handle.pid, signal.SIGKILL)
        if not _has_orphans(self._children):
            return
        left = strays(handle.owner, handle.token)
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=STRAYS_S)


def strays(owner: str, token: str = "") -> list[psutil.Process]:
    """Living processes with the owner's mark in their environment, or with the mark of one worker.

    owner: from `copies.owner_of`, so that a copy of a run never mistakes the original's processes for its own.
    """
    assert owner, "without an owner every process would carry its mark"
    found = []
    me = os.getpid()
    for process in psutil.process_iter():
        if process.pid == me:
            continue
        with suppress(psutil.Error, OSError):
            theirs, _, of = process.environ().get(ATTEMPT_VARIABLE, "").partition("/")
            if theirs == owner and token in ("", of):
                found.append(process)
    return found


def _has_orphans(known: set[int]) -> bool:
    """Whether a dead worker may have left processes. We are a subreaper, so its orphans are our children.

    Far cheaper than reading every process's environment. True if the kernel does not list children.
    """
    try:
        lists = [Path(task.path, "children").read_text() for task in os.scandir("/proc/self/task")]
    except OSError:
        return True
    return bool({int(pid) for children in lists for pid in children.split()} - known)


def _started(pid: int) -> float:
    with suppress(psutil.Error):
        return float(psutil.Process(pid).create_time())
    return 0.0


def _is_there(handle: Handle) -> bool:
    """Whether the pid still belongs to the handle's process."""
    with suppress(psutil.Error):
        process = psutil.Process(handle.pid)
        is_same = abs(process.create_time() - handle.started) < SAME_START_S
        return bool(is_same and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _is_stopped(pid: int) -> bool:
    """Whether a signal stopped the process. Reads /proc directly, as psutil is slow for a check made every turn."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False
