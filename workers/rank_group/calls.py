"""What the leader may ask every rank for: each call a type of its own, with what it takes and what is found.

`Replica.handlers` says who does it. A kind of worker adds calls of its own beside its replica.
"""

from __future__ import annotations

from typing import Any

from workers.memory.backoff import Sizes
from workers.rank_group.wire import Call
from workers.rollout.engine import Request, Rollout, Sampling


class Generate(Call[list[Rollout]]):
    """Draw this rank's requests."""

    requests: list[Request]
    sampling: Sampling


class Rest(Call[None]):
    """No rollouts for a while."""


class Resize(Call[None]):
    """Do so much at one time from now on."""

    sizes: Sizes


class Widen(Call[None]):
    """Draw as many rollouts side by side as memory holds while nothing trains.

    answers: rollouts that share a prompt; prompt_tokens: of the longest.
    """

    answers: int
    prompt_tokens: int


class SetRows(Call[None]):
    """rows: rollouts that decode side by side."""

    rows: int


class DropCache(Call[None]):
    """Give back the cache of the rollout engine."""


class Load(Call[None]):
    """A file of a checkpoint into the object that it belongs to."""

    filename: str
    path: str


class Save(Call[None]):
    """The other way."""

    filename: str
    path: str


class Probe(Call[dict[str, Any]]):
    """Compare this rank's engine and trainer with plain transformers."""


class Rehearse(Call[dict[str, Any]]):
    """The largest shapes of a step, without touching any state."""


class TakeMemory(Call[dict[str, float]]):
    """Memory figures of the step."""
