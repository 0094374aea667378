"""Which workers of a run may still live: written down around each start, and ended by the next master after a crash."""

from __future__ import annotations

import signal
import time

import msgspec

from orchestrator.launchers.launcher import Handle, Launcher
from orchestrator.launchers.local import STRAYS_S
from orchestrator.launchers.registry import launcher_named
from profiles.errors import LonghaulError
from state import durable
from state.layout import RunDir

EVERYWHERE = "local"
"""Asked always: the tracker and other helpers are processes of this machine, whatever starts the workers."""


def write(run: RunDir, handle: Handle) -> None:
    durable.make_dir(run.workers)
    durable.write_file(run.worker(handle.token), msgspec.json.encode(handle))


def forget(run: RunDir, token: str) -> None:
    """It has ended. Not durably: that it is gone is found out once more."""
    run.worker(token).unlink(missing_ok=True)


def end_all(run: RunDir, owner: str) -> int:
    """KILL what an earlier master of this directory left running, with the launcher that started it; forget it then.

    Returns how many processes or jobs there were. Raises LonghaulError(INPUT) where such a launcher is not to be had.
    """
    written = [handle for handle in _written(run) if handle.owner == owner]
    ended = 0
    for name in sorted({EVERYWHERE, *(handle.launcher for handle in written)}):
        theirs = [handle for handle in written if handle.launcher == name]
        ended += _end(_launcher_of(name, run, theirs), owner, theirs)
    for path in run.workers.glob("*"):
        path.unlink(missing_ok=True)
    return ended


def _end(launcher: Launcher, owner: str, handles: list[Handle]) -> int:
    found = launcher.adopt(owner, handles)
    for handle in found:
        launcher.signal(handle, signal.SIGKILL)
    until = time.monotonic() + STRAYS_S
    for handle in found:
        launcher.wait(handle, max(0.0, until - time.monotonic()))
    return len(found)


def _written(run: RunDir) -> list[Handle]:
    """A file that cannot be read says nothing; the mark of a local worker still finds it."""
    found = []
    for path in sorted(run.workers.glob("[!.]*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Handle))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def _launcher_of(name: str, run: RunDir, handles: list[Handle]) -> Launcher:
    try:
        return launcher_named(name)
    except LonghaulError as error:
        raise LonghaulError(
            f"{len(handles)} workers of an earlier master may still run, and only their launcher can end them; "
            f"{error.what}",
            kept="the run as it is; nothing was started",
            next_command=f"put the launcher's folder in PYTHONPATH and repeat the command; or end them yourself, then: "
            f"rm {' '.join(str(run.worker(handle.token)) for handle in handles)}",
            exit_code=error.exit_code,
        ) from error
