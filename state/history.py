"""The frozen facts that decisions and displays read. (pure)

A History is small however long the run is: the newest cycle, a window of committed ones, and running totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from state.states import AttemptState, CycleState, RunState

WINDOW = 64
"""Committed cycles that a History holds; no rule looks further back."""


@dataclass(frozen=True)
class CheckpointFacts:
    checkpoint_id: str
    parent: str | None
    cycle: int
    step: int
    path: str
    """Relative to the run directory."""
    digest: str
    bytes: int
    verified: bool = False
    is_cycle_end: bool = False
    state: str = "committed"


def num_unhashed(known: Sequence[CheckpointFacts], newest_id: str) -> int:
    """Checkpoints newer than the newest verified one, among them `newest_id`, which may have no row yet. (pure)

    known: oldest first.
    """
    committed = [facts for facts in known if facts.state == "committed"]
    count = 0 if any(facts.checkpoint_id == newest_id for facts in known) else 1
    for facts in reversed(committed):
        if facts.verified:
            break
        count += 1
    return count


@dataclass(frozen=True)
class AnswerBits:
    """Which problems of one task a checkpoint got right: bit n, counted from the lowest, is of problems[n]."""

    problems: tuple[str, ...]
    """Names by content: equal names, equal problems."""
    greedy: int
    sampled: int | None = None
    """None: nothing was sampled."""


@dataclass(frozen=True)
class ValidationFacts:
    """Score of one checkpoint on one suite. metrics: task -> name -> value, with the key "mean" over the tasks."""

    cycle: int
    step: int
    suite: str
    accuracy: float
    correct: int
    n: int
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    answers: Mapping[str, AnswerBits] = field(default_factory=dict)
    """By task; empty for a validation of before they were stored, and where only scores are read."""


@dataclass(frozen=True)
class ValidationCost:
    """What asking took, all suites together."""

    seconds: float
    asked: int
    available: int
    """Problems that the suites have."""


@dataclass(frozen=True)
class CycleFacts:
    cycle: int
    phase: str
    """"seed" or "train"."""
    state: CycleState
    first_step: int
    end_step: int
    reseed: int = 0
    verdict: str = ""
    evidence: str = ""
    exhausted: bool = False
    proposals: int = 0
    new_examples: int = 0
    learnable: int = 0
    train_s: float = 0.0
    validations: tuple[ValidationFacts, ...] = ()


@dataclass(frozen=True)
class AttemptFacts:
    cycle: int
    role: str
    attempt: int
    token: str
    state: AttemptState
    first_step: int
    step_reached: int
    progressed: bool
    """It left a committed checkpoint that was not there before."""
    exit_code: int | None = None
    failure: str = ""
    """Class of the failure: an ExitCode's name, `signal:N`, `host_oom`, `hung:STAGE`; empty if there was none."""
    message: str = ""
    reductions: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    pid: int = 0
    process_started: float = 0.0


@dataclass(frozen=True)
class History:
    """What the master knows. Steps count from 1; step 0 is the checkpoint that the seed phase ends with."""

    run_id: str
    name: str
    state: RunState
    head: CheckpointFacts | None = None
    reseeds: int = 0
    stop_reason: str = ""
    created_at: float = 0.0
    heartbeat_at: float = 0.0
    """UTC seconds at which a master last said that it lives."""
    current: CycleFacts | None = None
    """The newest cycle, in whatever state."""
    recent: tuple[CycleFacts, ...] = ()
    """The last WINDOW committed cycles, oldest first."""
    failures: tuple[AttemptFacts, ...] = ()
    """Attempts that ended in failure since the last progress, oldest first."""
    last_attempt: Mapping[str, int] = field(default_factory=dict)
    """role -> number of the newest attempt at the current cycle."""
    first_validation: ValidationFacts | None = None
    last_validation: ValidationFacts | None = None
    best_validation: ValidationFacts | None = None
    """Highest accuracy; ties go to the earlier."""
    cycles_done: int = 0
    examples: int = 0
    """Distinct valid tasks found in committed and current cycles."""
    training_s: float = 0.0
    """Seconds of training in all cycles."""
    seeding_s: float = 0.0
    """Seconds from first to last word of the workers of cycle 0, by their own clock: no time between two attempts."""
    reductions: int = 0
    """How often the rollout batch was halved for CUDA memory."""
    all_problems: bool | None = None
    """Whether validations ask every problem of their suites; None: not decided."""
    validation_cost: ValidationCost | None = None
    """Of the newest validation that said so."""

    @property
    def step(self) -> int:
        """Last step that cannot be lost."""
        return self.head.step if self.head is not None else 0


@dataclass(frozen=True)
class StepFacts:
    """One trained step, for charts. metrics: flat, as the worker reported them."""

    step: int
    cycle: int
    seconds: float
    reward: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class EventFacts:
    """One line of the log, for people."""

    at: float
    """UTC seconds."""
    cycle: int
    step: int
    type: str
    text: str
