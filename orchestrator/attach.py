"""Finds the scheduler's job that outlived its master, so that the next master can take it over."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import handles
from orchestrator.copies import owner_of
from orchestrator.launchers.launcher import BatchLauncher, Started
from profiles.schema import Profile
from state.history import AttemptFacts
from state.layout import RunDir
from state.reader import Reader


@dataclass(frozen=True)
class Running:
    """A worker that an earlier master started and that is still queued or running."""

    launcher: BatchLauncher
    started: Started
    attempt: AttemptFacts


def find_running(run: RunDir, reader: Reader, profile: Profile) -> Running | None:
    """The worker of an open attempt, if its launcher still has it; None: there is none.

    Raises LonghaulError: CLUSTER if the scheduler does not answer, INPUT if the launcher cannot be loaded.
    """
    owner = owner_of(run, reader.history().run_id)
    written = {handle.token: handle for handle in handles.written(run) if handle.owner == owner}
    for attempt in reversed(reader.open_attempts()):
        if (handle := written.get(attempt.token)) is None:
            continue
        launcher = handles.launcher_of(handle.launcher, run, [handle], profile)
        if not isinstance(launcher, BatchLauncher):
            continue
        started = launcher.attach(handle, run.attempt(attempt.cycle, attempt.attempt, attempt.role))
        if started is not None:
            return Running(launcher, started, attempt)
    return None
