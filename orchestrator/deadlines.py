"""Which deadline of a worker has passed. (pure)

All times are of the monotonic clock. Heartbeats prove that a process is scheduled; progress proves that it works.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from profiles.schema import Timeouts
from state import event_kinds
from state.facts import Line

FIRST_STEP_FACTOR = 4
"""The first step of an attempt may compile."""
STEPS_TIMED = 20
"""Steps whose median says how long the next one may take."""
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


class StepTimes:
    """Seconds of the last trained steps. One that has no time counts for nothing."""

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        """seconds: oldest first."""
        self._seconds = deque(filter(None, seconds), maxlen=STEPS_TIMED)

    def take(self, lines: Sequence[Line]) -> None:
        """Lines that were just ingested."""
        told = (line.data.get("seconds") for line in lines if line.type == event_kinds.STEP.name)
        self._seconds.extend(float(seconds) for seconds in told if isinstance(seconds, int | float) and seconds)

    @property
    def median_s(self) -> float:
        """0: no step was timed yet."""
        return statistics.median(self._seconds) if self._seconds else 0.0


def step_deadline_s(step_times: StepTimes, timeouts: Timeouts, *, is_first: bool) -> float:
    """Seconds that a step may take."""
    observed = step_times.median_s * timeouts.step_factor
    return max(timeouts.step_min_s, observed) * (FIRST_STEP_FACTOR if is_first else 1)


def overdue(
    watch: Watch,
    timeouts: Timeouts,
    step_times: StepTimes,
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
