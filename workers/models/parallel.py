"""How an update runs its passes: in one process, or on several GPUs together (`shards.py`).

The update itself is written once. Around its passes it calls the methods of `Single` or of `Shards`, which are the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

from workers.models.optimizer import AnyOptimizer, clip
from workers.models.packing import Batch, Unit, micro_batches
from workers.ranks.group import ALONE, Group

Value = TypeVar("Value")


class Single:
    """One process with a plain module. There is nothing to gather and nothing to wait for."""

    group: Group = ALONE
    parameters: Mapping[str, nn.Parameter] = {}
    """What the optimiser works on in place of the model's own parameters; empty for those."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Weights are whole inside, for passes without gradient that each rank makes by itself."""
        yield

    @contextmanager
    def passes(self) -> Iterator[None]:
        """Wraps the passes of a minibatch: for each pass `run`, its backward, then `passed`."""
        yield

    def mine(self, units: Sequence[Unit]) -> list[Unit]:
        """This rank's share, for work in which each rank makes its own passes."""
        return list(units)

    def partition(self, units: Sequence[Unit], rollouts: int, row_tokens: int) -> list[tuple[Batch, bool]]:
        """The passes of this rank in an update, and whether each counts: one that does not must have no gradient.

        rollouts, row_tokens: of a pass, as `micro_batches` takes them.
        """
        return [(batch, True) for batch in micro_batches(units, rollouts, row_tokens)]

    def run(self, work: Callable[[], Value]) -> Value:
        """Run a forward pass and its loss, with the weights readable. `work` returns the loss first."""
        return work()

    def passed(self) -> None:
        """Call it after the backward pass of what `run` returned."""

    def complete(self, optimizer: AnyOptimizer) -> None:
        """Call it after all passes of the minibatch: gives the optimiser the gradient summed over all ranks."""

    def clip(self, optimizer: AnyOptimizer, model: nn.Module, max_norm: float) -> Tensor:
        """Scale the gradients down to `max_norm`; returns the norm over all ranks before scaling."""
        return clip(optimizer, model, max_norm)

    def changed(self) -> None:
        """Call it after the optimiser has changed the weights, or they were loaded."""

    def forget(self) -> None:
        """Drop gradients that the optimiser was not given."""
