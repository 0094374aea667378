"""The contract between the master and its workers: spec, events, control messages and result. Does not import torch.

Facts travel in files (`spec.json`, `events.jsonl`, `result.json`). Messages on the control socket only prompt the other
side to read them sooner: a lost message costs time, never a fact.
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
"""Marks every process of a worker as `owner/token`. The owner is a run in its directory (`copies.owner_of`). The master
finds stray processes by this mark, never by name."""
TOKEN_VARIABLE = "LONGHAUL_TOKEN"
MAILBOX_VARIABLE = "LONGHAUL_MAILBOX"
"""Absolute path of the attempt's directory, for a worker that a scheduler starts. Such a worker has neither socket nor
lifeline, outlives the master, and exchanges messages through files in that directory, one per line."""
RESTART_VARIABLE = "LONGHAUL_RESTART"
"""How many times the scheduler has restarted the worker's job; unset: 0."""
HOST_VARIABLE = "LONGHAUL_HOST"
"""Index of this host among those that train together (`run.hosts`). A launcher starts `python -m workers` on host 0, as
on a single host, and `python -m workers.follower` on every other, each with these four variables; see
docs/cluster.md."""
HOSTS_VARIABLE = "LONGHAUL_HOSTS"
"""Number of hosts."""
MEETING_VARIABLE = "LONGHAUL_MEETING"
"""Path of a file in the attempt's directory, on a file system that all hosts share. Host 0 writes its listening address
there. The file must not exist yet, so a restarted job needs another name."""
NODE_VARIABLE = "LONGHAUL_NODE"
"""What the scheduler calls this host. Optional: without it, nobody can say which host is slow."""
INTERFACE_VARIABLE = "LONGHAUL_INTERFACE"
"""Network interface between the hosts; nothing listens on any other."""
HOSTS_WAIT_VARIABLE = "LONGHAUL_HOSTS_WAIT_S"
"""Seconds that hosts wait for each other at the start of an attempt; unset: 600."""
WARM_VARIABLE = "LONGHAUL_WARM"
"""The kind of worker to expect, whose imports are done before a task is known."""
NEEDS_VARIABLE = "LONGHAUL_WARM_NEEDS"
"""What else is imported then: values of `Need`, with commas between."""
BY_BUS = "PCI_BUS_ID"
"""Default CUDA_DEVICE_ORDER of workers. It numbers GPUs as nvidia-smi does, which the planner and the power caps query;
CUDA's own default puts the fastest first."""

HEARTBEAT_EVERY_S = 2.0
PAUSED = "paused"
"""Stage of a worker that waits between two steps until somebody resumes the run."""
HELD = "held"
"""Stage of a worker that was started ahead and waits until it may save, or for the head that it trains from."""

Role = Literal["train", "validate"]


class Need(StrEnum):
    """What the workers of some profiles import, and others do not."""

    BITSANDBYTES = "bitsandbytes"
    GPU = "gpu"


def needs_of(profile: Profile) -> list[Need]:
    """(pure)"""
    needs_bitsandbytes = profile.model.quantization == "nf4" or profile.optimizer.kind != "adamw"
    found = {Need.BITSANDBYTES: needs_bitsandbytes, Need.GPU: profile.run.device != "cpu"}
    return [need for need in Need if found[need]]


class Message(Struct, omit_defaults=True):
    """One line on the control socket, in either direction.

    To the worker: `start` (path: spec.json), `prepare` (the same, but no checkpoint before a `start`), `load` (the
    same, but no step before a `prepare`, whose spec.json differs in its head alone), `checkpoint`, `pause` (after the
    step, until `resume`), `resume`, `stop` (after the step), `abort` (now).
    From it: `ready`, `started`, `heartbeat` (step, stage), `checkpointed` (path, step, digest),
    `event_hint`, `done`, `freed` (after `done`: it holds no memory of a device, so the next one may train while this
    process ends), `unsupported`.
    `attempt` is the token that the process was started with: a message with another one is counted and dropped.
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
    """Identifies a checkpoint by path and content. path: relative to the run directory."""

    path: str
    step: int
    checkpoint_id: str
    """sha256 of MANIFEST.json: the checkpoint's identity."""
    digest: str
    """sha256 of the state files only: equal for equal state, whichever attempt wrote it."""


class WorkerSpec(Struct, frozen=True):
    """A worker's complete instructions. Written and fsynced before the worker is told to start."""

    run_id: str
    run_dir: str
    """Absolute; the only root that a worker uses."""
    role: Role
    cycle: int
    attempt: int
    token: str
    attempt_dir: str
    """Relative to run_dir."""
    first_step: int
    """First step to train: head.step + 1. A cycle owns the half-open interval [first_step, end_step)."""
    end_step: int
    """One past the last step of the cycle; a resume does not change it."""
    head: CheckpointRef | None
    """Checkpoint to start from; None: the profile's base model, at step 0."""
    profile: Profile
    profile_sha256: str
    isolate: bool = False
    """Set after a second failure at the same step: use deterministic kernels and anomaly detection, and keep
    evidence."""
    reductions: int = 0
    """How many times the rollout batch was halved after CUDA ran out of memory."""
    reseed: int = 0
    """How many times the run was reseeded. A worker whose state has a lower number consolidates its buffers."""
    all_problems: bool = False
    """Validation only: ask every problem of each suite, not only `validation.examples_per_task`."""
    asked: bool = False
    """Validation only: a person asked for it. It is not the cycle's own, and no rule reads its scores."""
    version: int = CONTRACT_VERSION


class Outcome(StrEnum):
    """How an attempt ended, as its worker reports it."""

    DONE = "done"
    """Completed all steps of the cycle, or the whole validation."""
    STOPPED = "stopped"
    """Stopped on request after a step, and checkpointed."""
    EXHAUSTED = "exhausted"
    """The finite task source ran out, the profile says to stop there, and the worker checkpointed."""
    FAILED = "failed"


Digits = Annotated[str, msgspec.Meta(pattern="^[01]*$")]


class TaskAnswers(Struct, frozen=True):
    """Which problems of one task were answered correctly: a string of `1` and `0`, in the order of `problems`.

    Raises ValueError if the lengths differ.
    """

    problems: tuple[str, ...]
    """Names derived from content: equal names mean equal problems."""
    greedy: Digits
    sampled: Digits = ""
    """Empty if nothing was sampled."""

    def __post_init__(self) -> None:
        if len(self.greedy) != len(self.problems) or len(self.sampled) not in (0, len(self.problems)):
            raise ValueError(f"{len(self.problems)} problems have {len(self.greedy)} and {len(self.sampled)} answers")


class Result(Struct, frozen=True):
    """`result.json`: the last file that a worker writes, durable before it exits."""

    token: str
    role: Role
    outcome: Outcome
    exit_code: int
    last_step: int
    """Last step included in the checkpoint."""
    checkpoint: CheckpointRef | None = None
    validation: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Validation only: suite -> metrics (see ValidationMetrics in docs/architecture.md)."""
    answers: dict[str, dict[str, TaskAnswers]] = msgspec.field(default_factory=dict)
    """Validation only: suite -> task -> which problems were answered correctly."""
    error: str = ""
    advice: str = ""
    version: int = CONTRACT_VERSION


class Event(Struct, frozen=True, omit_defaults=True):
    """One line of `events.jsonl`. `seq` counts from 1 in each attempt, so ingesting a line twice changes nothing.

    type: the name of a kind in `state.event_kinds`, which defines the fields of `data`.
    """

    seq: int
    type: str
    step: int = 0
    t_wall: float = 0.0
    t_mono: float = 0.0
    data: dict[str, Any] = msgspec.field(default_factory=dict)
