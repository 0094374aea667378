"""Records which workers of a run may still live, so that after a crash the next master can end them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

import msgspec

from orchestrator.launchers.launcher import BatchLauncher, Handle, Launcher
from orchestrator.launchers.local import STRAYS_S
from orchestrator.launchers.registry import launcher_named
from profiles.errors import LonghaulError
from profiles.schema import Profile
from state import durable
from state.history import AttemptFacts
from state.layout import RunDir

EVERYWHERE = "local"
"""Launcher that is always asked: the tracker and other helpers run on this machine, whatever starts the workers."""

JOBS_S = 120.0
"""Seconds to wait until a scheduler has ended its jobs."""


def write(run: RunDir, handle: Handle) -> None:
    durable.make_dir(run.workers)
    durable.write_file(run.worker(handle.token), msgspec.json.encode(handle))


def forget(run: RunDir, token: str) -> None:
    """Delete the handle of an ended worker. No fsync is needed: if the file reappears, `end_all` finds nothing."""
    run.worker(token).unlink(missing_ok=True)


def end_all(run: RunDir, owner: str, profile: Profile, running: str = "") -> int:
    """Kill workers that an earlier master of this directory left running, through their launchers. Forget those that
    end; the next start finds the others by their handles.

    running: token of a worker that this master keeps. Returns the number of processes or jobs that ended. Raises
    LonghaulError (INPUT) if such a launcher cannot be loaded.
    """
    mine = [handle for handle in written(run) if handle.owner == owner and handle.token != running]
    ended, kept = 0, {run.worker(running)}
    for name in sorted({EVERYWHERE, *(handle.launcher for handle in mine)}):
        theirs = [handle for handle in mine if handle.launcher == name]
        found, living = _end(launcher_of(name, run, theirs, profile), owner, theirs, running)
        ended += found - len(living)
        kept |= {run.worker(handle.token) for handle in living}
    for path in run.workers.glob("*"):
        if path not in kept:
            path.unlink(missing_ok=True)
    return ended


def _end(launcher: Launcher, owner: str, handles: list[Handle], running: str) -> tuple[int, list[Handle]]:
    """Kill one launcher's workers but `running`, whose processes may be found here if this machine is its node. Returns
    how many were found, and those that did not end in time."""
    found = [handle for handle in launcher.adopt(owner, handles) if handle.token != running]
    for handle in found:
        launcher.signal(handle, signal.SIGKILL)
    until = time.monotonic() + (STRAYS_S if not isinstance(launcher, BatchLauncher) else JOBS_S)
    lives = [launcher.wait(handle, max(0.0, until - time.monotonic())) for handle in found]
    return len(found), [handle for handle, life in zip(found, lives, strict=True) if life.exit_code is None]


def fence_off(run: RunDir, attempts: Iterable[AttemptFacts]) -> list[AttemptFacts]:
    """Keep workers that `end_all` could not end out of their attempts. Returns these attempts."""
    found = [attempt for attempt in attempts if run.worker(attempt.token).exists()]
    if found:
        from orchestrator.launchers.batch import fence  # takes 15 ms

        for attempt in found:
            fence(run.attempt(attempt.cycle, attempt.attempt, attempt.role))
    return found


def written(run: RunDir) -> list[Handle]:
    """All readable handles. An unreadable file is skipped; a local worker is still found by its mark."""
    found = []
    for path in sorted(run.workers.glob("[!.]*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Handle))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def launcher_of(name: str, run: RunDir, handles: list[Handle], profile: Profile) -> Launcher:
    """The launcher of these workers. Raises LonghaulError if it cannot be loaded."""
    try:
        return launcher_named(name, profile)
    except LonghaulError as error:
        raise LonghaulError(
            f"{len(handles)} workers of an earlier master may still run, and only their launcher can end them; "
            f"{error.what}",
            kept="the run as it is; nothing was started",
            next_command=f"put the launcher's folder in PYTHONPATH and repeat the command; or end them yourself, then: "
            f"rm {' '.join(str(run.worker(handle.token)) for handle in handles)}",
            exit_code=error.exit_code,
        ) from error
