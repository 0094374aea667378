"""How an update's passes are made: by one process alone, or by several GPUs together (`shards.py`).

An update is written once. What it does around its passes it asks of a `Single` or of `Shards`: these have the same
methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

from workers.models.optimizer import AnyOptimizer, clip
from workers.ranks.group import ALONE, Group

Item = TypeVar("Item")
Value = TypeVar("Value")


class Single:
    """One process with a plain module: nothing to gather, nothing to wait for. On one GPU FSDP would shard nothing."""

    group: Group = ALONE
    parameters: Mapping[str, nn.Parameter] = {}
    """What the optimiser works on instead of the model's own; empty: on these."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The weights are whole inside, for passes without gradient that each rank makes by itself."""
        yield

    @contextmanager
    def passes(self) -> Iterator[None]:
        """Around the passes of a minibatch, each `run`, then its backward, then `passed`."""
        yield

    def mine(self, batches: Sequence[Item]) -> list[Item]:
        """The part of this rank where each makes its own passes."""
        return list(batches)

    def partition(self, batches: Sequence[Item]) -> list[tuple[Item, bool]]:
        """The passes of this rank in an update, and whether each counts: one that does not must have no gradient."""
        return [(batch, True) for batch in batches]

    def run(self, work: Callable[[], Value]) -> Value:
        """A forward pass and its loss, in which weights may be read; `work` returns the loss first."""
        return work()

    def passed(self) -> None:
        """The backward pass of what `run` returned is done."""

    def complete(self, optimizer: AnyOptimizer) -> None:
        """All passes of the minibatch are done: give the optimiser the gradient of all ranks together."""

    def clip(self, optimizer: AnyOptimizer, model: nn.Module, max_norm: float) -> Tensor:
        """Scale the gradients down to `max_norm`; returns the norm before, of all ranks together."""
        return clip(optimizer, model, max_norm)

    def changed(self) -> None:
        """The optimiser has changed the weights, or they were loaded."""

    def forget(self) -> None:
        """Gradients that were not given to the optimiser are of no use."""
