"""Allows one orchestrator per run: an flock on `lock`, held for life. A refusal names the holder's pid and age.

The kernel releases the flock however its holder dies. The text in the file is for people. On a network file system,
where flock may not reach other hosts, the holder also has a lease (`state.lease`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.layout import RunDir
from state.lease import Holder as LeaseHolder
from state.lease import Lease

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "fuse.sshfs"}
)
MAX_TEXT_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS = Path("/proc/self/mounts")
_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, as it wrote itself into the file."""

    pid: int
    started_at: float
    host: str
    boot_id: str
    inode: int = 0
    """Inode of the lock file. A different one means that the file was copied along with the run."""
    incarnation: str = ""
    """Random number of this start of a master; the tokens of its workers begin with it."""


class RunLock:
    """Held from `acquire` to `release`. Neither a forked child nor an exec keeps it."""

    def __init__(self, fd: int, lease: Lease | None = None, incarnation: str = "") -> None:
        self._fd, self._lease = fd, lease
        self.incarnation = incarnation
        _held.add(self)

    @classmethod
    def acquire(
        cls,
        run: RunDir,
        *,
        now: float | None = None,
        on_network: Callable[[Path], bool] | None = None,
    ) -> RunLock:
        """Take the lock of `run`, whose directory must exist.

        On a network file system this waits up to 45 s for a sign of life of another host that holds the run. Raises
        LonghaulError: LOCKED, PERMISSION, DISK.
        """
        now = time.time() if now is None else now
        fd, lease = _open(run.lock), None
        try:
            is_shared = (on_network or is_network)(run.root)
            _flock(fd, run, now, is_needed=not is_shared)
            left = _holder(fd)
            if is_shared:
                with durable.explained("cannot write the lease in", run.root, kept="the run, untouched"):
                    lease = Lease.take(
                        run.root, socket.gethostname(), _boot_id(), lambda found: _elsewhere(run, found, left, now)
                    )
            incarnation, inode = secrets.token_hex(4), os.fstat(fd).st_ino
            _write(fd, run.lock, Holder(os.getpid(), now, socket.gethostname(), _boot_id(), inode, incarnation))
        except BaseException:
            os.close(fd)
            if lease is not None:
                lease.release()
            raise
        return cls(fd, lease, incarnation)

    def guard(self, *, anew: bool = False) -> None:
        """Raises LeaseLostError if another host may hold the run by now; asked before each write.

        anew: look at the lease now, as after an error that the other host may have made.
        """
        if self._lease is not None:
            self._lease.guard(anew=anew)

    def release(self) -> None:
        """Clear the text and unlock. Keeps the file: unlinking it would let two masters in. Safe to repeat.

        Where another host took the run over, the text is that host's, and stays.
        """
        is_ours = True
        if self._lease is not None:
            is_ours = self._lease.release()
        if self._fd >= 0:
            if is_ours:
                with suppress(OSError):  # the text is for people; the kernel unlocks in any case
                    os.ftruncate(self._fd, 0)
            with suppress(OSError):  # a file system without flock, or one that went away
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # a child forked just now may still have the file open
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_network(path: Path, mounts: str | None = None) -> bool:
    """Whether `path` is on a network file system, judged by the longest mount point that contains it."""
    text = _MOUNTS.read_text(errors="replace") if mounts is None else mounts
    resolved = path.resolve()
    kinds = {Path(fields[1].replace("\\040", " ")): fields[2] for fields in map(str.split, text.splitlines())}
    around = [point for point in kinds if point == resolved or point in resolved.parents]
    return bool(around) and kinds[max(around, key=lambda point: len(point.parts))] in NETWORK_FILE_SYSTEMS


def age_text(seconds: float) -> str:
    """A readable age: "40 s", "12 min", "3 h 5 min", "2 d 4 h". A clock set back gives "0 s". (pure)"""
    left = max(0, int(seconds))
    if left < 60:
        return f"{left} s"
    if left < 3600:
        return f"{left // 60} min"
    if left < 86400:
        return f"{left // 3600} h {left % 3600 // 60} min"
    return f"{left // 86400} d {left % 86400 // 3600} h"


def _open(path: Path) -> int:
    with durable.explained("cannot open the lock", path, kept="the run, untouched"):
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise LonghaulError(
                f"the lock {path} is a symbolic link",
                kept="the run, untouched",
                next_command=f"ls -l {path}   (remove the link if you did not make it)",
                exit_code=ExitCode.PERMISSION,
            ) from error


def _flock(fd: int, run: RunDir, now: float, *, is_needed: bool) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _refusal(run, _holder(fd), now) from error
    except OSError as error:
        if not is_needed:
            return  # the lease alone then keeps others out
        raise LonghaulError(
            f"the file system of {run.root} has no working flock: {error.strerror}",
            kept="the run, untouched",
            next_command=f"findmnt -T {run.root}   (then move the run to a local disk)",
            exit_code=ExitCode.DISK,
        ) from error


def _elsewhere(run: RunDir, found: LeaseHolder, left: Holder | None, now: float) -> LonghaulError:
    """The error for a holder on another host. left: the lock's text, which may be that of another holder."""
    is_same = left is not None and (left.host, left.pid) == (found.host, found.pid)
    return _refusal(run, left if is_same else Holder(found.pid, now, found.host, found.boot_id), now)


def _refusal(run: RunDir, holder: Holder | None, now: float) -> LonghaulError:
    who = "by another process"
    if holder is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder.started_at))
        who = f"by pid {holder.pid} on {holder.host} for {age_text(now - holder.started_at)} (since {since})"
    return LonghaulError(
        f"run '{run.name}' is held {who}",
        kept="the run, untouched; the other process goes on",
        next_command=f"python -m orchestrator status --run {run.name}",
        exit_code=ExitCode.LOCKED,
    )


def _holder(fd: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(fd, MAX_TEXT_BYTES, 0), type=Holder)
    except msgspec.DecodeError:
        return None


def _write(fd: int, path: Path, holder: Holder) -> None:
    with durable.explained("cannot write", path, kept="the run, untouched"):
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.format(msgspec.json.encode(holder)) + b"\n", 0)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _forget_in_child() -> None:
    """A forked child shares the flock, so a child that outlives us would hold the run forever. Close its copy."""
    for lock in tuple(_held):
        lock._close()


os.register_at_fork(after_in_child=_forget_in_child)
