"""Which deadline of a worker has passed. (pure)

All times are of the monotonic clock. Heartbeats prove that a process is scheduled; progress proves that it works.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from profiles.schema import Timeouts

FIRST_STEP_FACTOR = 4
"""The first step of an attempt may compile."""
BYTES_PER_S_START = 100e6
BYTES_PER_S_CHECKPOINT = 20e6


@dataclass(frozen=True)
class Watch:
    """What is known from outside about one worker."""

    spawned_at: float
    ready: bool = False
    started_at: float | None = None
    """When it was asked to start; None: a standby."""
    heard_at: float = 0.0
    """Last heartbeat or other message."""
    progress_at: float = 0.0
    """Last change of step or stage."""
    first_step: int = 0
    """First step of this attempt."""
    steps_done: int = 0
    """Steps finished in this attempt."""
    stage: str = ""
    stop_asked_at: float | None = None

    def later_by(self, seconds: float) -> Watch:
        """As if everything had happened so much later: time in which the worker, or we, did not run."""
        return replace(
            self,
            spawned_at=self.spawned_at + seconds,
            heard_at=self.heard_at + seconds,
            progress_at=self.progress_at + seconds,
            started_at=None if self.started_at is None else self.started_at + seconds,
            stop_asked_at=None if self.stop_asked_at is None else self.stop_asked_at + seconds,
        )


def step_deadline_s(step_times: Sequence[float], timeouts: Timeouts, *, is_first: bool) -> float:
    """Seconds that a step may take. step_times: seconds of the last trained steps, newest last."""
    observed = statistics.median(step_times[-20:]) * timeouts.step_factor if step_times else 0.0
    return max(timeouts.step_min_s, observed) * (FIRST_STEP_FACTOR if is_first else 1)


def overdue(
    watch: Watch,
    timeouts: Timeouts,
    step_times: Sequence[float],
    head_bytes: int,
    now: float,
    checkpoint_asked_at: float | None = None,
) -> str:
    """Name of the deadline that has passed, or an empty string.

    checkpoint_asked_at: when this worker was asked for a checkpoint that it has not made; None: it was not.
    """
    checkpoint_s = timeouts.checkpoint_s + head_bytes / BYTES_PER_S_CHECKPOINT
    step_s = step_deadline_s(step_times, timeouts, is_first=watch.steps_done == 0)
    if not watch.ready:
        return "startup" if now - watch.spawned_at > timeouts.startup_s + head_bytes / BYTES_PER_S_START else ""
    if now - watch.heard_at > timeouts.heartbeat_s:
        return "heartbeat"
    if watch.started_at is None:
        return ""
    if watch.stage == "checkpoint":
        return "checkpoint" if now - watch.progress_at > checkpoint_s else ""
    if now - max(watch.progress_at, watch.started_at) > step_s:
        return f"stage {watch.stage}" if watch.stage else "start"
    if watch.stop_asked_at is not None and now - watch.stop_asked_at > step_s + checkpoint_s:
        return "stop"
    if checkpoint_asked_at is not None and now - checkpoint_asked_at > step_s + checkpoint_s:
        return "checkpoint"
    return ""
