"""How long each part of a job of verl may take. (pure)

Ray waits without a limit: for nodes, for places on them, for the answer of a process that hangs. The worker does not.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from profiles.schema import Profile

CLUSTER_S = 300.0
"""Until all hosts are nodes of one Ray cluster."""
PLACEMENT_S = 600.0
"""Until Ray has found a place for each process that holds a GPU."""
ENGINES_S, ENGINES_S_PER_GIB, ENGINES_AT_MOST_S = 900.0, 20.0, 3600.0
"""Until trainers and rollout engines hold their weights: so many seconds, and so many for each GiB of weights on a GPU
of an engine. Most of it is no weights: on a fresh machine vLLM imports, compiles and captures for some minutes."""
STEP_FACTOR, SYNC_FACTOR = 5.0, 3.0
"""Multiples of the median of the last steps, and of the last syncs of weights."""
TIMED = 20
ENOUGH = 3
"""Steps of this job before their median says anything."""
SYNC_AT_LEAST_S = 60.0
ON_CPU = 10.0
"""All processes of a job share a few cores there."""
PATIENCE_VARIABLE = "LONGHAUL_VERL_PATIENCE"
"""Variable: a factor for all of these."""
PLACEMENT, ENGINES, SYNC = "placement", "engines", "sync"
OTHERS = frozenset({"checkpoint", "validate"})
"""Stages whose length depends on disks and problems: the master watches them."""


def patience(profile: Profile, environment: Mapping[str, str]) -> float:
    """The factor for all deadlines. Raises ValueError where the variable is no number."""
    return float(environment.get(PATIENCE_VARIABLE) or 1) * (ON_CPU if profile.run.device == "cpu" else 1.0)


def gib_of_weights(model: Path) -> float:
    """GiB of the weights in a Hugging Face model's folder."""
    found = [*model.glob("*.safetensors"), *model.glob("*.bin")]
    return sum(path.stat().st_size for path in found) / 2**30


class Deadlines:
    """Told again and again where the job is, says which of its parts takes too long. now: monotonic seconds."""

    def __init__(self, profile: Profile, gib: float, factor: float) -> None:
        engines = min(ENGINES_S + ENGINES_S_PER_GIB * gib / profile.verl.tensor_parallel, ENGINES_AT_MOST_S)
        self._starts = {PLACEMENT: PLACEMENT_S * factor, ENGINES: engines * factor}
        self._factor, self._step_at_least_s = factor, profile.timeouts.step_min_s / 2
        self._steps: deque[float] = deque(maxlen=TIMED)
        self._syncs: deque[float] = deque(maxlen=TIMED)
        self._step, self._stage, self._since = -1, "", 0.0
        self._spent = 0.0
        """Seconds of this step in the stages before this one."""

    def overdue(self, step: int, stage: str, now: float) -> str:
        """What takes too long, in words; empty: nothing does. Half of `timeouts.step_min_s` is granted to any step, so
        that this speaks before the master ends the worker."""
        if (step, stage) != (self._step, self._stage):
            self._move(step, stage, now)
        took = now - self._since
        if stage in self._starts:
            return _words(stage, took, self._starts[stage])
        if stage == SYNC and len(self._syncs) >= ENOUGH:
            limit = max(SYNC_AT_LEAST_S, SYNC_FACTOR * statistics.median(self._syncs)) * self._factor
            if said := _words("the sync of weights", took, limit):
                return said
        if stage in OTHERS or len(self._steps) < ENOUGH:
            return ""
        limit = max(self._step_at_least_s, STEP_FACTOR * statistics.median(self._steps) * self._factor)
        return _words(f"step {step}", self._spent + took, limit)

    def _move(self, step: int, stage: str, now: float) -> None:
        took = now - self._since
        if self._stage == SYNC:
            self._syncs.append(took)
        if self._stage not in OTHERS and self._step >= 0:
            self._spent += took
        if step != self._step:
            if self._step >= 0:
                self._steps.append(self._spent)
            self._spent = 0.0
        self._step, self._stage, self._since = step, stage, now


def _words(what: str, took: float, limit: float) -> str:
    return f"{what} has taken {took:.0f} s, and {limit:.0f} s is its deadline" if took > limit else ""
