"""Named crash points where a test can kill this process. Without LONGHAUL_CRASHPOINT they do nothing.

LONGHAUL_CRASHPOINT="name:nth[:action[:argument]]": at the nth hit of `name` in this process, counted from 1, do
    kill    SIGKILL to itself (the default)          exit    os._exit with the argument as code (70)
    enospc  raise OSError "No space left on device"  eio     raise OSError "Input/output error"
    stop    SIGSTOP to itself                        sleep   for the argument in seconds (3600)
LONGHAUL_CRASHPOINT_ONCE=FILE: only the first process to reach the point acts; it creates FILE as a mark.
LONGHAUL_CRASHPOINT_COUNT=FILE: count hits across all processes (one byte per hit), so that the nth occurs only once.
LONGHAUL_CRASHPOINT_LOG=FILE: append the name of each point hit, so that a test can count them.
All four are read once, at import. Do not place crash points in code that runs per token or per program.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping

POINTS = frozenset(
    {
        # state.durable: small files written by rename (specs, results, pid files)
        "durable.before_rename",
        "durable.after_rename",
        # state.checkpoint, in the worker
        "ckpt.staging_created",
        "ckpt.files_written",
        "ckpt.manifest_written",
        "ckpt.before_rename",
        "ckpt.after_rename",
        # state.store, state.trash, state.recover and orchestrator/, in the master
        "store.created",
        "store.before_rename",
        "store.born",
        "store.before_commit",
        "store.in_migration",
        "ingest.before_offset",
        "commit.before",
        "commit.inside",
        "commit.after",
        # orchestrator.hashing and verifying: only for large checkpoints
        "hash.begun",
        "hash.done",
        "prune.marked",
        "prune.after_rename",
        "prune.mid_remove",
        "recover.before_quarantine",
        "recover.after_quarantine",
        "master.ready",
        "attempt.planned",
        "ahead.named",
        "worker.launched",
        "attempt.spawned",
        "attempt.started",
        "attempt.before_close",
        "cycle.committed",
        "recover.strays_killed",
        "recover.attempt_closed",
        "recover.adopted",
        "recover.told",
        # workers/
        "worker.before_ready",
        "worker.after_started",
        "worker.loaded",
        "worker.rollouts_half",
        "worker.rollouts_done",
        "worker.before_update",
        "worker.after_update",
        "worker.validating",
        "worker.after_done",
        "worker.leaving",
        # state.evaluations and workers/evaluate
        "evaluate.before_commit",
        "evaluate.answers_written",
        "evaluate.array_planned",
        "evaluate.array_submitted",
        # orchestrator.commands.export
        "export.before_rename",
    }
)
"""All names. A call with any other name fails in the tests, and whenever crash points are armed."""

VARIABLE = "LONGHAUL_CRASHPOINT"
LOG_VARIABLE = "LONGHAUL_CRASHPOINT_LOG"
ONCE_VARIABLE = "LONGHAUL_CRASHPOINT_ONCE"
COUNT_VARIABLE = "LONGHAUL_CRASHPOINT_COUNT"


def _kill(argument: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(argument: str) -> None:
    os._exit(int(argument or 70))


def _enospc(argument: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _eio(argument: str) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _stop(argument: str) -> None:
    import threading  # only tests stop here

    # To this very thread: a signal to the process may stop it by way of another thread, while this one runs on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _sleep(argument: str) -> None:
    time.sleep(float(argument or 3600))


ACTIONS: dict[str, Callable[[str], None]] = {
    "kill": _kill,
    "exit": _exit,
    "enospc": _enospc,
    "eio": _eio,
    "stop": _stop,
    "sleep": _sleep,
}


class Armed:
    """Counts hits and acts at the requested one."""

    def __init__(self, order: str, log: str = "", once: str = "", count: str = "") -> None:
        """Raises ValueError for a malformed `order`, or an unknown point or action."""
        name, nth, action, argument = (*order.split(":", 3), *[""] * 4)[:4] if order else ("", "0", "", "")
        if order and (name not in POINTS or (action and action not in ACTIONS) or not nth.isdigit() or int(nth) < 1):
            raise ValueError(
                f"{VARIABLE}={order!r}: expected name:nth[:action[:argument]], a name of state.crash.POINTS, "
                f"nth from 1, an action of {sorted(ACTIONS)}"
            )
        self._name, self._nth, self._argument = name, int(nth), argument
        self._act = ACTIONS[action or "kill"]
        self._log, self._once, self._count = log, once, count
        self._hits = 0

    def hit(self, name: str) -> None:
        if name not in POINTS:
            raise ValueError(f"crash_point({name!r}): not in state.crash.POINTS")
        if self._log:
            _append(self._log, f"{name}\n")
        if name != self._name:
            return
        self._hits = _append(self._count, ".") if self._count else self._hits + 1
        if self._hits == self._nth and self._is_first():
            self._act(self._argument)

    def _is_first(self) -> bool:
        if not self._once:
            return True
        try:
            os.close(os.open(self._once, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        return True


def _append(path: str, text: str) -> int:
    """Append and return the new size of the file; safe when several processes append at once."""
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
        return os.lseek(fd, 0, os.SEEK_CUR)
    finally:
        os.close(fd)


def _nothing(name: str) -> None:
    """crash_point outside tests."""


def bind(environment: Mapping[str, str]) -> Callable[[str], None]:
    """The crash_point for this environment: a no-op unless a variable arms or logs it."""
    order, log = environment.get(VARIABLE, ""), environment.get(LOG_VARIABLE, "")
    if not order and not log:
        return _nothing
    return Armed(order, log, environment.get(ONCE_VARIABLE, ""), environment.get(COUNT_VARIABLE, "")).hit


crash_point: Callable[[str], None] = bind(os.environ)
