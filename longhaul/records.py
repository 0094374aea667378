"""The typed records that a run is read as. (pure)

Steps count from 1; step 0 is the model before training. Times are UTC seconds. docs/metrics.md lists the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Step:
    """One finished step of training."""

    step: int
    cycle: int
    seconds: float
    reward: float | None
    """Mean over the rollouts that were judged; None if none was."""
    metrics: Mapping[str, float]
    """All that the worker reported, by name."""


@dataclass(frozen=True)
class Point:
    """Several consecutive steps as one point of a curve."""

    first: int
    last: int
    """Steps, both included."""
    seconds: float
    """Of training, from the beginning of the run to `last`."""
    tokens: int
    """Completion tokens, likewise."""
    metrics: Mapping[str, Mapping[str, float]]
    """Name -> "mean", "low" and "high" over these steps. A metric that none of them reported is left out."""


@dataclass(frozen=True)
class Validation:
    """The score of one checkpoint on one suite of held-out problems."""

    step: int
    cycle: int
    suite: str
    accuracy: float
    """Greedy: the mean over the suite's tasks, from 0 to 1."""
    low: float
    high: float
    """95 % interval of `accuracy`; both equal it where none was stored."""
    correct: int
    n: int
    """Problems."""
    tasks: Mapping[str, Mapping[str, float]]
    """Task -> metric -> value, and "mean" for all tasks."""


@dataclass(frozen=True)
class Cycle:
    """A fixed number of steps and the validation after them."""

    cycle: int
    phase: str
    """"seed" or "train"."""
    state: str
    """"planned", "training", "trained", "validating", "validated", "committed" or "blocked"."""
    first: int
    last: int
    """Steps, both included; last < first in a cycle without steps."""
    train_seconds: float
    new_tasks: int
    verdict: str
    """What the stagnation rule said, as "kind:action"; empty before that."""
    evidence: str


@dataclass(frozen=True)
class Task:
    """A task that self-play found. The texts are a model's output: never evaluate them."""

    kind: str
    step: int
    program: str
    input: str
    output: str
    solve_rate: float | None
    """Share of the solver's answers that were right when it was found; None if nobody tried."""


@dataclass(frozen=True)
class Rollout:
    """One completion that a step trained on. The texts are a model's output: never evaluate them."""

    step: int
    task: str
    """Role and kind of task in self-play, as "solve ded"; empty for problems with answers."""
    prompt: str
    answer: str
    """The completion as the model wrote it, special tokens included."""
    verdict: str
    """"right", "wrong", "no answer found" and so on, as the command `samples` says it."""
    reward: float | None
    """None where it was not judged."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are still there."""

    step: int
    cycle: int
    path: Path
    digest: str
    """sha256 of the state files: equal for equal state."""
    num_bytes: int
    is_head: bool
    """Whether training goes on from it."""


@dataclass(frozen=True)
class Event:
    """One line of the event log. The text comes from workers."""

    at: float
    cycle: int
    step: int
    type: str
    text: str


@dataclass(frozen=True)
class Status:
    """Where a run stands, as the command `status` says it."""

    run: str
    profile: str
    state: str
    """"running", "paused", "stopped", "finished", "stagnant" or "failed"; "interrupted": the master died."""
    phase: str
    cycle: int
    step: int
    """Last finished step."""
    steps_total: int | None
    """Last step of the run; None without a limit on cycles."""
    head_step: int | None
    """Step of the newest durable checkpoint; None before the first."""
    accuracy: float | None
    """Newest held-out score on the run's first suite; None before the first validation."""
    training_seconds: float
    master_pid: int | None
    """None: nobody drives the run."""
    failures: int
    """Attempts that failed since the last progress."""
    stop_reason: str
    facts: Mapping[str, Any] = field(repr=False)
    """All that `status --json` prints."""

    @property
    def is_running(self) -> bool:
        """Whether a master drives the run."""
        return self.master_pid is not None
