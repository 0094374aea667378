"""Decides which deadline of a worker has passed. (pure)

All times are monotonic. Heartbeats prove that a process is scheduled; progress proves that it works.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from profiles.metrics import SECONDS
from profiles.schema import Timeouts
from state import event_kinds
from state.facts import Line
from workers.contract import HELD, PAUSED

FIRST_STEP_FACTOR = 4
"""The first step of an attempt gets this many times longer, because it may compile."""
STEPS_TIMED = 20
"""Number of recent steps whose median predicts the next one."""
BYTES_PER_S_START = 100e6
BYTES_PER_S_CHECKPOINT = 20e6


@dataclass(frozen=True)
class Watch:
    """What the master observes of one worker."""

    spawned_at: float
    ready: bool = False
    started_at: float | None = None
    """When it was asked to start; None for a standby worker."""
    heard_at: float = 0.0
    """Time of the last heartbeat or other message."""
    progress_at: float = 0.0
    """Time of the last change of step or stage."""
    first_step: int = 0
    """First step of this attempt."""
    steps_done: int = 0
    """Steps finished in this attempt."""
    stage: str = ""
    is_to_pause: bool | None = False
    """Whether it was last asked to wait between two steps or to go on; None: an earlier master may have asked."""
    stop_asked_at: float | None = None
    is_held: bool = False
    """Whether it was started ahead, and may not save yet."""

    def asked_to_pause(self, is_to_pause: bool, now: float) -> Watch:
        """The master asks it to wait between two steps, or to go on: a worker that waits now owes progress."""
        progress_at = now if self.stage == PAUSED else self.progress_at
        return replace(self, is_to_pause=is_to_pause, progress_at=progress_at)

    def with_steps(self, lines: Sequence[Line]) -> Watch:
        """Count the finished steps among newly ingested lines of this attempt."""
        done = [line.step + 1 - self.first_step for line in lines if line.type == event_kinds.STEP.name]
        return replace(self, steps_done=max([self.steps_done, *done]))

    def later_by(self, seconds: float) -> Watch:
        """Postpone every deadline, because the worker or the master did not run for that long."""
        return replace(
            self,
            spawned_at=self.spawned_at + seconds,
            heard_at=self.heard_at + seconds,
            progress_at=self.progress_at + seconds,
            started_at=None if self.started_at is None else self.started_at + seconds,
            stop_asked_at=None if self.stop_asked_at is None else self.stop_asked_at + seconds,
        )


class StepTimes:
    """Durations of the last trained steps. Ignores steps without a time."""

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        """seconds: oldest first."""
        self._seconds = deque(filter(None, seconds), maxlen=STEPS_TIMED)

    def take(self, lines: Sequence[Line]) -> None:
        """Add the steps among newly ingested lines."""
        times = (line.data.get(SECONDS.name) for line in lines if line.type == event_kinds.STEP.name)
        self._seconds.extend(float(seconds) for seconds in times if isinstance(seconds, int | float) and seconds)

    @property
    def median_s(self) -> float:
        """Median duration; 0 before the first timed step."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    @property
    def longest_s(self) -> float:
        """The longest of them; 0 before the first timed step."""
        return max(self._seconds, default=0.0)


def step_deadline_s(step_times: StepTimes, timeouts: Timeouts, *, is_first: bool) -> float:
    """How long a step may take."""
    observed = step_times.median_s * timeouts.step_factor
    return max(timeouts.step_min_s, observed) * (FIRST_STEP_FACTOR if is_first else 1)


def overdue(
    watch: Watch,
    timeouts: Timeouts,
    step_times: StepTimes,
    head_bytes: int,
    now: float,
    checkpoint_asked_at: float | None = None,
    stop_may_wait_s: float = 0.0,
) -> str:
    """Name of the deadline that has passed, or an empty string.

    checkpoint_asked_at: when this worker was asked for a checkpoint that is still pending; None if there is none.
    stop_may_wait_s: how much longer than a step and its checkpoint a stop may take.
    """
    checkpoint_s = timeouts.checkpoint_s + head_bytes / BYTES_PER_S_CHECKPOINT
    step_s = step_deadline_s(step_times, timeouts, is_first=watch.steps_done == 0)
    if not watch.ready:
        return "startup" if now - watch.spawned_at > timeouts.startup_s + head_bytes / BYTES_PER_S_START else ""
    if now - watch.heard_at > timeouts.heartbeat_s:
        return "heartbeat"
    if watch.started_at is None or (watch.is_held and watch.stage == HELD):
        return ""
    if watch.stage == "checkpoint":
        return "checkpoint" if now - watch.progress_at > checkpoint_s else ""
    waits = watch.stage == PAUSED and watch.is_to_pause
    longest_s = timeouts.paused_s + step_s + checkpoint_s if waits else step_s  # it ends a long pause by itself
    if now - max(watch.progress_at, watch.started_at) > longest_s:
        return "pause" if waits else f"stage {watch.stage}" if watch.stage else "start"
    if watch.stop_asked_at is not None and now - watch.stop_asked_at > stop_may_wait_s + step_s + checkpoint_s:
        return "stop"
    if checkpoint_asked_at is not None and now - checkpoint_asked_at > step_s + checkpoint_s:
        return "checkpoint"
    return ""
