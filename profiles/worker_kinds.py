"""Facts about each kind of worker for the master and its displays. (pure)

`workers/<name>/kind.py` defines what a kind does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from profiles.metrics import (
    ACCEPT_RATE,
    ACCURACY,
    CLIP_FRACTION,
    ENTROPY,
    GRAD_NORM,
    GROUP_SPREAD,
    KEPT_TOKENS,
    KL,
    LEARNABLE,
    LEARNING_RATE,
    LOSS,
    REWARD_FORMAT,
    REWARD_LENGTH,
    SKIPPED_SHARE,
    STATEMENTS,
    TOKENS_MEAN,
    TOKENS_PER_S,
    TRUNCATED,
    Metric,
)

if TYPE_CHECKING:  # `status` starts without the schema
    from profiles.schema import Profile


@dataclass(frozen=True)
class WorkerKind:
    training: str
    """Display name of the training phase."""
    seeding: str
    """Display name of the phase before it."""
    first_thing: str
    """What the display shows before the first cycle."""
    signals: tuple[Metric, ...]
    """Metrics of a step to display, the most informative first."""
    rollout_signals: tuple[Metric, ...] = ()
    """Those of them that describe the rollouts; the others describe the update."""
    idle: Mapping[Metric, float] = field(default_factory=dict)
    """Metric -> the constant value it has if the profile does not use it; such a metric is not displayed."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Tile -> title, where it differs from the tile's default."""
    finds_tasks: bool = True
    """False if it reads given problems, so that there are no buffers or tasks to show."""
    hands_on: bool = False
    """Whether a next run can start with the tasks it found."""
    uses_model: bool = True
    """False if it needs no language model, and so neither its libraries nor a GPU."""
    has_own_engine: bool = False
    """True: another program trains and draws rollouts. Our engines, planner and readers of checkpoints do not apply."""
    saves_when_asked: bool = True
    """False if it writes checkpoints at steps of its own only (`run.checkpoint_every`). A stop then waits for the next
    one, `open_instruct.stop_within_s` at most."""
    validates: bool = True
    """False if no validation follows its cycles: nothing of ours can answer with its weights."""


_SELF_PLAY = WorkerKind(
    training="self-play",
    seeding="seeding",
    first_thing="the first buffers",
    signals=(
        ACCEPT_RATE,
        ACCURACY,
        LEARNABLE,
        STATEMENTS,
        ENTROPY,
        CLIP_FRACTION,
        LOSS,
        GRAD_NORM,
        LEARNING_RATE,
    ),
    hands_on=True,
)
_GRPO = WorkerKind(
    training="GRPO",
    seeding="first model",
    first_thing="before the first step",
    signals=(
        ACCURACY,
        GROUP_SPREAD,
        SKIPPED_SHARE,
        TOKENS_MEAN,
        TRUNCATED,
        ENTROPY,
        KEPT_TOKENS,
        KL,
        CLIP_FRACTION,
        LOSS,
        GRAD_NORM,
        LEARNING_RATE,
        TOKENS_PER_S,
    ),
    rollout_signals=(ACCURACY, GROUP_SPREAD, SKIPPED_SHARE, TOKENS_MEAN),
    idle={REWARD_FORMAT: 0.0, REWARD_LENGTH: 0.0, KL: 0.0, TRUNCATED: 0.0, KEPT_TOKENS: 1.0},
    titles={"play": "rollouts", "data": "problems", "signals": "update"},
    finds_tasks=False,
)
_VERL = replace(
    _GRPO,
    training="GRPO by verl",
    signals=(
        ACCURACY,
        TOKENS_MEAN,
        TRUNCATED,
        ENTROPY,
        KL,
        CLIP_FRACTION,
        LOSS,
        GRAD_NORM,
        LEARNING_RATE,
        TOKENS_PER_S,
    ),
    rollout_signals=(ACCURACY, TOKENS_MEAN, TRUNCATED),
    has_own_engine=True,
)
_OPEN_INSTRUCT = replace(
    _VERL, training="GRPO by open-instruct", uses_model=False, saves_when_asked=False, validates=False
)
_FAKE = replace(_SELF_PLAY, hands_on=False, uses_model=False)

KINDS: Mapping[str, WorkerKind] = {
    "azr": _SELF_PLAY,
    "grpo": _GRPO,
    "verl": _VERL,
    "open_instruct": _OPEN_INSTRUCT,
    "fake": _FAKE,
}
"""By `run.worker`."""


def worker_kind_of(profile: Profile) -> WorkerKind:
    """The kind of the profile's worker."""
    return KINDS[profile.run.worker]


def kind_of_stored(profile: Mapping[str, Any]) -> WorkerKind:
    """The kind of a stored profile's worker; self-play if the profile is damaged."""
    return KINDS.get(profile.get("run", {}).get("worker"), _SELF_PLAY)
