"""Who holds a run on a network file system, where flock may not reach other hosts: a file that its holder renews.

`lease.N` belongs to the Nth holder. It is made with O_EXCL, so that one of two hosts wins, and only after the file
before it stood still for PATIENCE_S by the clock of the host that watches; clocks of two hosts are never compared.
A holder asks `guard` before it writes. It renews every RENEW_S, and learns that another took over when its own file is
gone or a later one is there.

Not covered: a holder that is stopped for longer than PATIENCE_S in the middle of a write, and then finishes it.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from profiles.errors import ExitCode, LonghaulError

RENEW_S = 5.0
STALE_S = 30.0
"""A holder that could not renew for so long asks again before its next write."""
PATIENCE_S = 45.0
"""A lease that stood still for so long is dead."""
LOOK_S = 1.0
NAME = "lease."
MAX_BYTES = 4096
GONE = frozenset({errno.ENOENT, errno.ESTALE})
"""What a file system says of a file that another host removed."""


@dataclass(frozen=True)
class Holder:
    """Who wrote a lease. beats: how often it renewed. An empty host: released."""

    host: str = ""
    boot_id: str = ""
    pid: int = 0
    beats: int = 0


class LeaseLostError(LonghaulError):
    """Another host holds the run. Nothing of it may be written any more, not even to say goodbye."""


class Lease:
    """Held from `take` to `release`, and renewed by a thread."""

    def __init__(self, root: Path, number: int, holder: Holder) -> None:
        self._root, self._number, self._holder = root, number, holder
        self._renewed_at = boottime()
        self._lost: LeaseLostError | None = None
        self._renewing, self._ended = threading.Lock(), threading.Event()
        threading.Thread(target=self._renew_for_ever, name="lease", daemon=True).start()

    @classmethod
    def take(cls, root: Path, host: str, boot_id: str, refuse: Callable[[Holder], LonghaulError]) -> Lease:
        """Take the lease of a run's directory; waits up to PATIENCE_S for a sign of life of another host's holder.

        The caller has the flock, so a holder of this host and this boot is dead. refuse: makes the error to raise for
        a holder that lives. Raises LonghaulError (DISK) where files cannot be made exclusively.
        """
        mine = Holder(host, boot_id, os.getpid())
        while True:
            number, found = newest(root)
            is_here = found is not None and (found.host, found.boot_id) == (host, boot_id)
            if found is not None and found.host and not is_here and is_alive(root, number, found):
                raise refuse(newest(root)[1] or found)
            path = root / f"{NAME}{number + 1}"
            if not _make(path, mine):
                continue  # another host was faster: it is watched from now on
            if _make(path, mine):
                raise _not_exclusive(root)
            for older in root.glob(f"{NAME}*"):
                if older != path:
                    older.unlink(missing_ok=True)
            return cls(root, number + 1, mine)

    def guard(self, *, anew: bool = False) -> None:
        """Raises LeaseLostError if another host holds the run, or may: if renewing failed for STALE_S.

        anew: look at the files now, however short ago that was.
        """
        if self._lost is None and (anew or boottime() - self._renewed_at > 2 * RENEW_S):
            self._renew()
        if self._lost is not None:
            raise self._lost

    def release(self) -> bool:
        """Say that nobody holds the run; False if another host holds it. Safe to repeat.

        The file stays, so that an earlier holder still finds a later number.
        """
        with suppress(LeaseLostError):
            self.guard(anew=True)
        self._ended.set()
        with self._renewing:
            if self._lost is None:
                with suppress(OSError):
                    _write(self._path, Holder())
            return self._lost is None

    @property
    def _path(self) -> Path:
        return self._root / f"{NAME}{self._number}"

    def _renew_for_ever(self) -> None:
        while not self._ended.wait(RENEW_S):
            self._renew()

    def _renew(self) -> None:
        with self._renewing:
            if self._lost is not None or self._ended.is_set():
                return
            began = boottime()
            away = began - self._renewed_at
            holder = replace(self._holder, beats=self._holder.beats + 1)
            try:
                if newest(self._root)[0] > self._number:
                    self._lose("another host took it over")
                    return
                _write(self._path, holder)
                if away > STALE_S:  # somebody may have looked for the last time just before that
                    time.sleep(2 * LOOK_S)
                    if newest(self._root)[0] > self._number:
                        self._lose("another host took it over")
                        return
            except OSError as error:
                if error.errno in GONE:
                    self._lose("another host took it over")
                elif away > STALE_S:
                    self._lose(f"its lease could not be renewed for {away:.0f} s ({error.strerror})")
                return
            self._holder, self._renewed_at = holder, began

    def _lose(self, why: str) -> None:
        self._lost = LeaseLostError(
            f"run '{self._root.name}' is no longer held by this process: {why}",
            kept="everything that was committed; what was under way is left to the other host",
            next_command=f"python -m orchestrator status --run {self._root.name}",
            exit_code=ExitCode.LOCKED,
        )


def newest(root: Path) -> tuple[int, Holder | None]:
    """Number and text of the last lease; (0, None) if there is none. An unreadable text belongs to nobody known."""
    names = [path.name.removeprefix(NAME) for path in root.glob(f"{NAME}*")]
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    return number, _read(root / f"{NAME}{number}") if number else None


def is_alive(root: Path, number: int, seen: Holder) -> bool:
    """Whether the lease changes within PATIENCE_S. One that is released or replaced meanwhile is not alive."""
    who = f"pid {seen.pid} on {seen.host}" if seen.pid else seen.host
    sys.stderr.write(f"run '{root.name}' is held by {who}; looking for up to {PATIENCE_S:.0f} s whether it lives\n")
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        time.sleep(LOOK_S)
        now_number, now = newest(root)
        if now_number != number or now is None or not now.host:
            return False
        if now != seen:
            return True
    return False


def boottime() -> float:
    """Seconds that also count while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _read(path: Path) -> Holder:
    """Opened anew each time: on NFS only an open asks the server."""
    try:
        return msgspec.json.decode(path.read_bytes()[:MAX_BYTES], type=Holder)
    except FileNotFoundError:
        return Holder()
    except (OSError, msgspec.DecodeError):
        return Holder("another host")


def _write(path: Path, holder: Holder) -> None:
    """Closed each time: on NFS only a close tells the server. Raises OSError, also if the file is gone."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        text = msgspec.json.encode(holder)
        os.pwrite(fd, text.ljust(256) + b"\n", 0)
    finally:
        os.close(fd)


def _make(path: Path, holder: Holder) -> bool:
    """Make the file; False if it is there already."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except PermissionError:
        # SFTP says only that it failed, which sshfs gives as EPERM, if another host makes the file at that moment.
        if os.path.lexists(path):
            return False
        raise
    _write(path, holder)
    return True


def _not_exclusive(root: Path) -> LonghaulError:
    return LonghaulError(
        f"the file system of {root} makes a file twice that may be made once: two hosts could train one run",
        kept="the run, untouched",
        next_command=f"findmnt -T {root}   (then move the run to another file system)",
        exit_code=ExitCode.DISK,
    )
