"""What the time of cycles went into, from when a cycle was begun until it was committed. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from profiles.metrics import SECONDS

PARTS = {
    "generation": ("propose", "solve", "rollout"),
    "update": ("update",),
    "sandbox": ("validate_proposals", "judge"),
}
"""Part -> stages of a step. Other stages, such as `measuring`, are rest."""
NEWEST = 8
"""Committed cycles for a statement about a run as it is now."""
STEPS_READ = 1000
"""Enough of them: cycles of thousands of steps would cost `status` seconds."""


@dataclass(frozen=True)
class CycleTime:
    """Seconds of a committed cycle. They add up to `whole` as long as its workers and its master read one clock.

    Unless a cycle began beside the validation before it: `whole` does not count that time, but `parts` do."""

    cycle: int
    whole: float
    parts: Mapping[str, float]
    """Of its trained steps, as `parts_of`."""
    starting: float
    """From its begin to the begin of its first step: start of a worker, imports, weights, probe."""
    between: float
    """Between its steps: checkpoints, and what was repeated after a failure."""
    leaving: float
    """From the end of its last step to the start of validation, or to the commit."""
    validation: float
    committing: float
    """From the end of validation to the commit."""

    @property
    def learning(self) -> float:
        """Of rollouts and updates."""
        return self.parts["generation"] + self.parts["update"]


STARTS = ("worker", "load", "compare", "rehearse")


@dataclass(frozen=True)
class StartTime:
    """Seconds of the start of an attempt. worker: until a process works on it; load: files, weights, state; compare:
    with plain transformers; rehearse: the largest shapes, which only training does. A part that was not told is 0."""

    cycle: int
    role: str
    seconds: Mapping[str, float]


def start_of(
    cycle: int, role: str, ordered: float, events: Mapping[str, tuple[float, Mapping[str, float]]]
) -> StartTime:
    """ordered: when the master started the attempt, UTC. events: kind -> (UTC, data). (pure)"""
    started = events["started"][0]
    compared, told = events.get("path", (started, {}))
    rehearsed, _ = events.get("memory", (compared, {}))
    comparing = told.get("compare_s", 0.0)
    found = (started - ordered, compared - started - comparing, comparing, rehearsed - compared)
    return StartTime(cycle, role, dict(zip(STARTS, (max(0.0, one) for one in found), strict=True)))


def parts_of(metrics: Mapping[str, float | None], seconds: float) -> dict[str, float]:
    """Seconds of one step by part; time that no part accounts for is `rest`. (pure)"""
    told = {part: [metrics.get(f"{SECONDS.name}/{stage}") or 0.0 for stage in stages] for part, stages in PARTS.items()}
    parts = {part: sum(filter(isfinite, times)) for part, times in told.items()}
    return parts | {"rest": max(0.0, seconds - sum(parts.values()))}


def time_of(
    cycle: int,
    times: tuple[float, float],
    steps: Sequence[tuple[float, float, Mapping[str, float | None]]],
    validated: tuple[float, float] | None,
) -> CycleTime:
    """times: when it was begun and committed. steps: (end, seconds, metrics) of its trained steps, in order.
    validated: when the worker began and ended; None without one. All in UTC seconds. (pure)"""
    begun, committed = times
    parts = [parts_of(metrics, seconds) for _, seconds, metrics in steps]
    first, last = steps[0][0] - steps[0][1], steps[-1][0]
    left, entered = validated or (committed, committed)
    return CycleTime(
        cycle=cycle,
        whole=committed - begun,
        parts={part: sum(one[part] for one in parts) for part in parts[0]},
        starting=max(0.0, first - begun),
        between=max(0.0, last - first - sum(seconds for _, seconds, _ in steps)),
        leaving=max(0.0, left - last),
        validation=entered - left,
        committing=max(0.0, committed - entered),
    )


def of_one_clock(cycles: Sequence[CycleTime]) -> list[CycleTime]:
    """Without those in which the clock was set back: their parts are longer than the whole. (pure)"""
    return [one for one in cycles if one.whole >= one.learning and one.validation >= 0.0]


def learning_share(cycles: Sequence[CycleTime]) -> float:
    """Of rollouts and updates in the time of these cycles. (pure)"""
    whole = sum(one.whole for one in cycles)
    return sum(one.learning for one in cycles) / whole if whole else 0.0
