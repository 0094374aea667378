"""Named places where a test may kill this process; without LONGHAUL_CRASHPOINT in the environment a call does nothing.

LONGHAUL_CRASHPOINT="name:nth[:action[:argument]]": at the nth hit of `name` in this process (1 is the first) do
    kill    SIGKILL to itself (the default)          exit    os._exit, code in the argument (70)
    enospc  raise OSError "No space left on device"  eio     raise OSError "Input/output error"
    stop    SIGSTOP to itself                        sleep   seconds in the argument (3600)
LONGHAUL_CRASHPOINT_ONCE=FILE: only the first process that gets there acts; the file is the mark.
LONGHAUL_CRASHPOINT_COUNT=FILE: hits are counted over all processes (one byte a hit), so the nth one comes only once.
LONGHAUL_CRASHPOINT_LOG=FILE: one line with the name at each hit, for the run that counts them.
All four are read once, at import. Not for code that runs once a token or once a program.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping

POINTS = frozenset(
    {
        # state.durable: every small file that is written by rename (specs, results, pid files)
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
        # orchestrator.hashing and verifying: large checkpoints alone
        "hash.begun",
        "hash.done",
        "prune.marked",
        "prune.after_rename",
        "prune.mid_remove",
        "recover.before_quarantine",
        "recover.after_quarantine",
        "master.ready",
        "attempt.spawned",
        "attempt.planned",
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
        "worker.rollouts_half",
        "worker.rollouts_done",
        "worker.before_update",
        "worker.after_update",
        "worker.after_done",
        # state.evaluations and workers/evaluate
        "evaluate.before_commit",
        "evaluate.answers_written",
        # orchestrator.commands.export
        "export.before_rename",
    }
)
"""All names. A call with a name that is not here fails in the tests, and when crash points are armed."""

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
    os.kill(os.getpid(), signal.SIGSTOP)


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
    """Counts hits, and acts at the one that was asked for."""

    def __init__(self, order: str, log: str = "", once: str = "", count: str = "") -> None:
        """Raises ValueError for an order that is not in the form above, or names no known point or action."""
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
    """The size of the file afterwards; right also where several processes append at once."""
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
        return os.lseek(fd, 0, os.SEEK_CUR)
    finally:
        os.close(fd)


def _nothing(name: str) -> None:
    """What crash_point is in every real run."""


def bind(environment: Mapping[str, str]) -> Callable[[str], None]:
    """The crash_point for this environment: the no-op unless something was ordered."""
    order, log = environment.get(VARIABLE, ""), environment.get(LOG_VARIABLE, "")
    if not order and not log:
        return _nothing
    return Armed(order, log, environment.get(ONCE_VARIABLE, ""), environment.get(COUNT_VARIABLE, "")).hit


crash_point: Callable[[str], None] = bind(os.environ)
