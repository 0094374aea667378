"""The frozen facts that decisions and displays read. (pure)

A History stays small in long runs: the newest cycle, a window of committed cycles, and running totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from state.states import AttemptState, CycleState, RunState

WINDOW = 64
"""Number of committed cycles in a History; no rule looks further back."""


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
    """Number of checkpoints newer than the newest verified one, counting `newest_id` even if it has no row yet. (pure)

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
    """Which problems of one task a checkpoint solved. Bit n, counted from the lowest, belongs to problems[n]."""

    problems: tuple[str, ...]
    """Names derived from content: equal names mean equal problems."""
    greedy: int
    sampled: int | None = None
    """None if nothing was sampled."""


@dataclass(frozen=True)
class NodeFailure:
    """A node of a cluster that failed under an attempt. at: UTC seconds."""

    node: str
    reason: str
    cycle: int
    attempt: int
    at: float


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
    """By task. Empty if the validation predates stored answers, or if only scores were read."""


@dataclass(frozen=True)
class ValidationCost:
    """Cost of one validation, over all suites."""

    seconds: float
    asked: int
    available: int
    """Problems in the suites."""


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
    """Of its end, as the profile asks for them. Those that a person asked for are left out: no rule reads them."""


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
    """Whether it committed a new checkpoint."""
    exit_code: int | None = None
    failure: str = ""
    """Class of the failure: an ExitCode's name, `signal:N`, `host_oom` or `hung:STAGE`; empty if it did not fail."""
    message: str = ""
    reductions: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    pid: int = 0
    process_started: float = 0.0


@dataclass(frozen=True)
class History:
    """What the master knows. Steps count from 1; step 0 is the checkpoint at the end of seeding."""

    run_id: str
    name: str
    state: RunState
    head: CheckpointFacts | None = None
    reseeds: int = 0
    stop_reason: str = ""
    created_at: float = 0.0
    heartbeat_at: float = 0.0
    """UTC seconds of the master's last heartbeat."""
    current: CycleFacts | None = None
    """The newest cycle, in any state; the oldest uncommitted one if there is any."""
    recent: tuple[CycleFacts, ...] = ()
    """The last WINDOW committed cycles, oldest first."""
    failures: tuple[AttemptFacts, ...] = ()
    """Failed attempts since the last progress, oldest first."""
    last_attempt: Mapping[str, int] = field(default_factory=dict)
    """role -> number of the newest attempt at the current cycle."""
    first_validation: ValidationFacts | None = None
    last_validation: ValidationFacts | None = None
    best_validation: ValidationFacts | None = None
    """Highest accuracy; the earlier wins a tie."""
    cycles_done: int = 0
    examples: int = 0
    """Distinct valid tasks found in committed and current cycles."""
    training_s: float = 0.0
    """Training time of all cycles."""
    seeding_s: float = 0.0
    """Time from first to last event of each attempt at cycle 0, summed. Excludes the time between attempts."""
    reductions: int = 0
    """How often the rollout batch was halved after CUDA ran out of memory."""
    all_problems: bool | None = None
    """Whether validations use every problem of their suites; None: undecided."""
    validation_cost: ValidationCost | None = None
    """Cost of the newest validation, if its worker reported it."""
    paused_at: float | None = None
    """UTC seconds since which somebody wants the run to pause; None: nobody does."""
    validation_asked: int | None = None
    """Step after which somebody wants a validation; None: nobody does."""
    is_head_validated: bool = False

    @property
    def step(self) -> int:
        """Last step in a committed checkpoint."""
        return self.head.step if self.head is not None else 0


@dataclass(frozen=True)
class StepFacts:
    """One trained step, for charts. metrics: as reported by the worker, flat."""

    step: int
    cycle: int
    seconds: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class EventFacts:
    """One line of the event log."""

    at: float
    """UTC seconds."""
    cycle: int
    step: int
    type: str
    text: str
