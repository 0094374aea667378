"""Finds the living processes of a run: the master by its lock, a worker by the row of its attempt.

A process id alone proves nothing, because the kernel reuses ids. Nothing here takes the lock: holding it even briefly
could make a starting master give up.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from state.history import AttemptFacts
from state.layout import RunDir

SLACK_S = 2.0
"""Tolerance for start times, which are measured in clock ticks."""
ELSEWHERE_S = 120.0
"""A master on another machine counts as alive while its heartbeat is younger than this."""
_LOCKS = Path("/proc/locks")


def lock_text(run: RunDir) -> dict[str, Any]:
    """What the lock's holder wrote about itself (pid, started_at, host); empty after a release.

    Avoids `state.lock`, whose decoder takes 20 ms to import.
    """
    with suppress(OSError, ValueError):
        text = json.loads(run.lock.read_text(errors="replace"))
        if isinstance(text, dict):
            return text
    return {}


def master_pid(run: RunDir, heartbeat_age_s: float) -> int | None:
    """The process id of the master of `run`; None if there is none."""
    text = lock_text(run)
    pid, started = text.get("pid"), text.get("started_at")
    if not isinstance(pid, int) or pid <= 0 or not isinstance(started, int | float) or _is_copied(run, text):
        return None
    if text.get("host") != socket.gethostname():
        return pid if heartbeat_age_s < ELSEWHERE_S else None
    is_held = _kernel_holder(run) == pid
    # A process that started after the lock was taken is another one that reuses the id.
    return pid if is_held or is_process(pid, started_before=started + SLACK_S) else None


def _is_copied(run: RunDir, text: dict[str, Any]) -> bool:
    """Whether the lock file was copied along with the run, so that it names the original's master."""
    with suppress(OSError):
        return text.get("inode", 0) not in (0, run.lock.stat().st_ino)
    return False


def worker_pid(open_attempts: tuple[AttemptFacts, ...], master: int) -> int | None:
    """The process id of the newest open attempt whose process is still alive."""
    for attempt in reversed(open_attempts):
        if attempt.pid and is_process(attempt.pid, parent=master, started_before=attempt.process_started + SLACK_S):
            return attempt.pid
    return None


def is_process(pid: int, *, started_before: float, parent: int | None = None) -> bool:
    """Whether `pid` is alive and is a child of `parent`, or started before `started_before` (UTC seconds).

    Checks the parent first, because the wall clock may have been set since the start was recorded.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if parent is not None and process.ppid() == parent:
            return True
        return float(process.create_time()) <= started_before
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False


def rss_bytes(pid: int | None) -> int | None:
    """Resident memory of a process in bytes; None if it does not exist."""
    if not pid:
        return None
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def _kernel_holder(run: RunDir) -> int | None:
    """The pid that holds the flock according to /proc/locks. None proves nothing."""
    with suppress(OSError):
        return flock_holder(_LOCKS.read_text(), run.lock.stat().st_ino)
    return None


def flock_holder(locks: str, inode: int) -> int | None:
    """The pid that holds an flock on `inode`. locks: the text of /proc/locks. (pure)"""
    for line in locks.splitlines():  # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131090 0 EOF
        words = line.split()
        if len(words) == 8 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return int(words[4])
    return None
