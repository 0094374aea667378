"""What the master and its workers share: the spec in, the events out, the messages between, the result. No torch.

Facts travel in files (`spec.json`, `events.jsonl`, `result.json`); the control socket only makes them be looked at
sooner. A lost message loses speed, never a fact.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from profiles.schema import Profile

CONTRACT_VERSION = 1
MAX_MESSAGE_BYTES = 64 * 1024
CONTROL_FD = 3
LIFELINE_FD = 4
CONTROL_FD_VARIABLE = "LONGHAUL_CONTROL_FD"
LIFELINE_FD_VARIABLE = "LONGHAUL_LIFELINE_FD"
ATTEMPT_VARIABLE = "LONGHAUL_ATTEMPT"
"""Marks every process of a worker, as `owner/token`, the owner being a run in its directory; strays are found by it,
never by name."""
TOKEN_VARIABLE = "LONGHAUL_TOKEN"
BY_BUS = "PCI_BUS_ID"
"""CUDA_DEVICE_ORDER of workers, unless the user says another: cards are counted as by nvidia-smi, which plans and caps
ask; CUDA's own order has the fastest first."""

HEARTBEAT_EVERY_S = 2.0

Role = Literal["train", "validate"]


class Message(Struct, omit_defaults=True):
    """One line on the control socket, either way.

    To the worker: `start` (path: spec.json), `checkpoint`, `stop` (after the step), `abort` (now).
    From it: `ready`, `started`, `heartbeat` (step, stage), `checkpointed` (path, step, digest),
    `event_hint`, `done`, `unsupported`.
    `attempt` is the token that the process was born with: a message with another one is counted and dropped.
    """

    type: str
    attempt: str = ""
    v: int = CONTRACT_VERSION
    id: int = 0
    step: int = 0
    stage: str = ""
    path: str = ""
    digest: str = ""
    reason: str = ""


class CheckpointRef(Struct, frozen=True):
    """A checkpoint by name and content. path is relative to the run directory."""

    path: str
    step: int
    checkpoint_id: str
    """sha256 of MANIFEST.json: the identity."""
    digest: str
    """sha256 over the state files alone: equal for equal state, whichever attempt wrote it."""


class WorkerSpec(Struct, frozen=True):
    """All that a worker is told. Written and fsynced before the worker is asked to start."""

    run_id: str
    run_dir: str
    """Absolute when written; a worker uses no other root."""
    role: Role
    cycle: int
    attempt: int
    token: str
    attempt_dir: str
    """Relative to run_dir."""
    first_step: int
    """First step to be done; head.step + 1. A cycle owns the half-open interval [first_step, end_step)."""
    end_step: int
    """One past the last step of the cycle, whatever was done before a resume."""
    head: CheckpointRef | None
    """Checkpoint to begin from; None: the model as the profile names it, at step 0."""
    profile: Profile
    profile_sha256: str
    isolate: bool = False
    """Second failure at one step: deterministic kernels, anomaly detection, evidence kept."""
    reductions: int = 0
    """How often the rollout batch was halved after CUDA ran out of memory."""
    reseed: int = 0
    """How often the run was reseeded; a worker that sees a higher number than its state consolidates its buffers."""
    all_problems: bool = False
    """Validation only: ask every problem that a suite has, not just `validation.examples_per_task`."""
    version: int = CONTRACT_VERSION


class Outcome(StrEnum):
    """How an attempt ended, in its own words."""

    DONE = "done"
    """All steps of the cycle, or all of the validation."""
    STOPPED = "stopped"
    """As asked, after the step, checkpointed."""
    EXHAUSTED = "exhausted"
    """The finite source of tasks ended and the profile says stop; checkpointed."""
    FAILED = "failed"


Digits = Annotated[str, msgspec.Meta(pattern="^[01]*$")]


class TaskAnswers(Struct, frozen=True):
    """Which problems of one task were answered right, in the order of `problems`: a `1` or a `0` each.

    Raises ValueError where their numbers differ.
    """

    problems: tuple[str, ...]
    """Names by content: equal names, equal problems."""
    greedy: Digits
    sampled: Digits = ""
    """Empty: nothing was sampled."""

    def __post_init__(self) -> None:
        if len(self.greedy) != len(self.problems) or len(self.sampled) not in (0, len(self.problems)):
            raise ValueError(f"{len(self.problems)} problems have {len(self.greedy)} and {len(self.sampled)} answers")


class Result(Struct, frozen=True):
    """`result.json`: the last thing a worker writes, durable before it exits."""

    token: str
    role: Role
    outcome: Outcome
    exit_code: int
    last_step: int
    """Last step that is in the checkpoint."""
    checkpoint: CheckpointRef | None = None
    validation: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Validation only: suite -> metrics (see ValidationMetrics in docs/architecture.md)."""
    answers: dict[str, dict[str, TaskAnswers]] = msgspec.field(default_factory=dict)
    """Validation only: suite -> task -> who answered what."""
    error: str = ""
    advice: str = ""
    version: int = CONTRACT_VERSION


class Event(Struct, frozen=True, omit_defaults=True):
    """One line of `events.jsonl`. `seq` counts from 1 in each attempt, so ingesting a line twice changes nothing.

    type: the name of a kind in `state.event_kinds`, which says what `data` has.
    """

    seq: int
    type: str
    step: int = 0
    t_wall: float = 0.0
    t_mono: float = 0.0
    data: dict[str, Any] = msgspec.field(default_factory=dict)
