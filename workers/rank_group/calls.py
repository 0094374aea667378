"""The calls that the leader can make to every rank. Each call is a type with its arguments and the type of its result.

`Replica.handlers` maps them to methods. A kind of worker adds its own calls beside its replica.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from workers.memory.backoff import Sizes
from workers.rank_group.wire import Call
from workers.ranks.own_work import OwnWork
from workers.rollout.engine import Request, Rollout, Sampling


class Generate(Call[list[Rollout]]):
    """Draw this rank's requests."""

    requests: list[Request]
    sampling: Sampling


class Rest(Call[None]):
    """No rollouts follow soon: free their memory."""


class Resize(Call[None]):
    """Use these sizes from now on."""

    sizes: Sizes


class Widen(Call[None]):
    """Decode as many rollouts side by side as fit into memory while nothing trains.

    answers: rollouts per prompt. prompt_tokens: length of the longest prompt.
    """

    answers: int
    prompt_tokens: int


class SetRows(Call[None]):
    """Set how many rollouts decode side by side."""

    rows: int


class DropCache(Call[None]):
    """Free the cache of the rollout engine."""


class Load(Call[None]):
    """Load a checkpoint file into its object."""

    filename: str
    path: str


class Save(Call[None]):
    """Save an object to its checkpoint file."""

    filename: str
    path: str


class Probe(Call[dict[str, Any]]):
    """Compare this rank's engine and trainer with plain transformers."""


class Rehearse(Call[dict[str, Any]]):
    """Run the largest shapes of a step, without changing any state."""


class Reserve(Call[None]):
    """Allocate what `Rehearse` would leave behind, the engine's cache, without running anything."""


class Figures(Struct):
    """What a rank measured in a step. metrics: of its memory, and of the check of products in 8 bits."""

    metrics: dict[str, float]
    own: OwnWork


class TakeFigures(Call[Figures]):
    """Return what was measured in the step."""
