"""What the master and its screens must know of each kind of worker. (pure)

What a kind does is its own business: `workers/<name>/kind.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `status` starts without the schema
    from profiles.schema import Profile


@dataclass(frozen=True)
class WorkerKind:
    training: str
    """The phase of training, for a person."""
    seeding: str
    """The phase before it."""
    first_thing: str
    """What a run has before its first cycle."""
    signals: tuple[str, ...]
    """Metrics of a step that screens draw, the most telling first."""
    rollout_signals: tuple[str, ...] = ()
    """Those of them that say how the rollouts are; the others say what the update does."""
    idle: Mapping[str, float] = field(default_factory=dict)
    """Metrics that are reported also where the profile does without them, and their value then: not worth a line."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Tile -> its title, where the kind has another than the tile's own."""
    finds_tasks: bool = True
    """False: it reads problems that are given, so there are no buffers and no tasks to show."""
    hands_on: bool = False
    """Whether a next run may begin with the tasks that it found."""
    uses_model: bool = True
    """False: neither a language model nor the libraries and the GPU that one needs."""


_SELF_PLAY = WorkerKind(
    training="self-play",
    seeding="seeding",
    first_thing="the first buffers",
    signals=(
        "accept_rate",
        "accuracy",
        "learnable",
        "statements",
        "entropy",
        "clip_fraction",
        "loss",
        "grad_norm",
        "learning_rate",
    ),
    hands_on=True,
)
_GRPO = WorkerKind(
    training="GRPO",
    seeding="first model",
    first_thing="before the first step",
    signals=(
        "accuracy",
        "group_spread",
        "skipped_share",
        "tokens_mean",
        "truncated",
        "entropy",
        "kept_tokens",
        "kl",
        "clip_fraction",
        "loss",
        "grad_norm",
        "learning_rate",
        "tokens_per_s",
    ),
    rollout_signals=("accuracy", "group_spread", "skipped_share", "tokens_mean"),
    idle={"reward/format": 0.0, "reward/length": 0.0, "kl": 0.0, "truncated": 0.0, "kept_tokens": 1.0},
    titles={"play": "rollouts", "data": "problems", "signals": "update"},
    finds_tasks=False,
)
_FAKE = replace(_SELF_PLAY, hands_on=False, uses_model=False)

KINDS: Mapping[str, WorkerKind] = {"azr": _SELF_PLAY, "grpo": _GRPO, "fake": _FAKE}
"""By `run.worker`."""


def worker_kind_of(profile: Profile) -> WorkerKind:
    """The kind that the profile names."""
    return KINDS[profile.run.worker]


def kind_of_stored(profile: Mapping[str, Any]) -> WorkerKind:
    """The same of a profile as JSON has it; where that is damaged, self-play."""
    return KINDS.get(profile.get("run", {}).get("worker"), _SELF_PLAY)
