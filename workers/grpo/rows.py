"""What one step of GRPO leaves on disk before its update: rollouts with rewards, groups that teach, what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from workers.cycle.cursor import Place as CursorPlace
from workers.grpo.curriculum import Place as StagePlace


class Row(Struct, frozen=True, kw_only=True):
    """One rollout. `group`: the draw of a problem in this step; a problem that is drawn twice has two."""

    group: int
    problem: int
    """Its number among the usable lines of the problem file."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Of each completion token, as the rollout engine reported them. With `entropies` empty unless all are finite."""
    entropies: tuple[float, ...] = ()
    """Of the distributions they were drawn from, nats; empty where the engine did not tell them."""
    finish_reason: str
    reward: float
    is_correct: bool = False
    is_answered: bool = True
    """Whether an answer was found in it."""
    format_reward: float = 0.0
    """The part of `reward` that was paid for its form."""
    length_penalty: float = 0.0
    """What was taken off it for its length."""
    own_rewards: dict[str, float] = {}
    """Parts of `reward` that a person added, by name."""
    is_finite: bool = True
    """False: the engine's numbers were NaN or infinite. JSON has no word for them, and the row is not trained on."""


class Collected(Struct, frozen=True, kw_only=True):
    """All of a step before its update. Every rollout is here, also those of groups that teach nothing."""

    rows: list[Row]
    train: tuple[int, ...]
    """Groups to train on, in order; none: no update."""
    rounds: int = 0
    """Extra draws in place of uniform groups."""
    metrics: dict[str, float] = {}
    cursor: CursorPlace | None = None
    """Where the problems are read on: a place of one kind or the other."""
    stage: StagePlace | None = None

    def records(self) -> list[dict[str, Any]]:
        """JSON records, one a line of the rollout file."""
        rest = msgspec.to_builtins(self)
        rows = rest.pop("rows")
        return [*rows, rest]

    @staticmethod
    def of(records: Sequence[dict[str, Any]]) -> Collected:
        *rows, rest = records
        return msgspec.convert({**rest, "rows": rows}, Collected)
