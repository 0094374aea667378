"""How an update runs its passes: in one process, or on several GPUs together.

The update itself is written once. Around its passes it calls the methods of `Single`, of `DataParallel` (an adapter on
several GPUs, `data_parallel.py`) or of `Shards` (all weights on several GPUs, `shards.py`), which are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from workers.models.optimizer import AnyOptimizer, Parts, clip
from workers.models.packing import Batch, Unit, micro_batches, shares_of
from workers.ranks.group import ALONE, Group
from workers.ranks.own_work import Stopwatch

Value = TypeVar("Value")


class Single:
    """One process with a plain module. There is nothing to gather and nothing to wait for."""

    group: Group = ALONE
    parameters: Mapping[str, nn.Parameter] = {}
    """What the optimiser works on in place of the model's own parameters; empty for those."""
    parts: Parts | None = None
    """How the optimiser's state is divided among the ranks; None if each rank has all of it."""
    gathered_bytes = 0
    """Bytes that `whole` adds on this rank's GPU."""

    @property
    def state_ranks(self) -> int:
        """How many ranks the optimiser's state is divided among."""
        return self.group.size if self.parts is not None else 1

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Weights are whole inside, and may be loaded; nothing inside may exchange. Calls may nest."""
        yield

    def keep(self) -> None:
        """Call it inside `whole` after weights were loaded."""

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


class Several(Single):
    """One of several ranks, each of which makes its share of the work by itself and times it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.stopwatch = Stopwatch()
        """What this rank computes without waiting for another."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.whole(), self.group.agreed(), self.stopwatch.computing():
            yield

    def mine(self, units: Sequence[Unit]) -> list[Unit]:
        share = shares_of(units, self.group.size)[self.group.rank]
        self.stopwatch.add(trained=sum(unit.tokens for unit in share))
        return share


def parallel_of(model: Any, group: Group) -> Single:
    """How the ranks of `group` train `model`. model: from `open_policy`, the same on every rank; `Shards` wraps it in
    place."""
    if group.size == 1:
        return Single()
    if any(not parameter.requires_grad for parameter in model.parameters()):
        from workers.models.data_parallel import DataParallel

        return DataParallel(model, group)
    from workers.models.shards import Shards

    return Shards(model, group)
