"""An adapter on several GPUs: every rank holds all of it, and gradients are summed once in a minibatch.

An adapter is small, so nothing is divided: each rank makes its own passes, all ranks get the same summed gradient, and
each applies the same update to its own copy. The matrices never move, as sharding would have them do, so passes may be
CUDA graphs as on one GPU. Ranks that launched their kernels one by one took 2.8 times as long as one GPU with graphs
(docs/models.md).

A rank that runs out of memory in a pass blocks no other: all agree at the end of the passes, and repeat them with
smaller sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workers.memory.phases import applied_once
from workers.models.master import MasterWeights
from workers.models.optimizer import AnyOptimizer, trainable
from workers.models.packing import Batch, Unit
from workers.models.parallel import Several
from workers.ranks.group import Group

BUCKET = 8 << 20
"""Most numbers summed at a time, which bounds the memory that an exchange takes: 12 bytes each on two ranks."""


class DataParallel(Several):
    """One rank's model, which is left as it is."""

    def __init__(self, model: Any, group: Group) -> None:
        """model: the same on every rank, with frozen weights of any precision beside the trained ones."""
        super().__init__(group)
        self._trained = trainable(model)

    @contextmanager
    def passes(self) -> Iterator[None]:
        try:
            with self.group.agreed(), self.stopwatch.computing():
                yield
        except Exception:
            self.forget()
            raise

    def partition(self, units: Sequence[Unit], rollouts: int, row_tokens: int) -> list[tuple[Batch, bool]]:
        return super().partition(self.mine(units), rollouts, row_tokens)

    @torch.no_grad()
    def complete(self, optimizer: AnyOptimizer) -> None:
        """Every rank gets the same sum, to the last bit. A rank without a pass adds zeros."""
        with applied_once("exchanging gradients"):
            if isinstance(optimizer, MasterWeights):
                gradients = {name: optimizer.gradient(name) for name in self._trained}
                self._sum(list(gradients.values()))
                optimizer.give(gradients)
                return
            for parameter in self._trained.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._sum([parameter.grad for parameter in self._trained.values() if parameter.grad is not None])

    def _sum(self, gradients: Sequence[Tensor]) -> None:
        """Replace each gradient by its sum over the ranks."""
        for bucket in buckets(gradients):
            flat = torch.cat([gradient.reshape(-1).float() for gradient in bucket])
            parts = torch.split(sum_in_order(flat, self.group.size), [gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def forget(self) -> None:
        for parameter in self._trained.values():
            parameter.grad = None


def buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Consecutive tensors with at most `BUCKET` numbers together, or one alone that has more. (pure)"""
    found: list[list[Tensor]] = []
    room = 0
    for tensor in tensors:
        if tensor.numel() > room:
            found.append([])
            room = BUCKET
        found[-1].append(tensor)
        room -= tensor.numel()
    return found


def sum_in_order(mine: Tensor, size: int) -> Tensor:
    """The sum over all ranks, in the order of the ranks: ((rank 0 + rank 1) + rank 2) + ...

    A library's all-reduce adds in an order that depends on how the ranks are connected; over one host and over two the
    same ranks would get other bits. mine: [N], float32. Each rank adds up one part of it and sends that to all.
    """
    part = -(-len(mine) // size)
    sent = nn.functional.pad(mine, (0, part * size - len(mine)))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    total, *others = received.view(size, part)
    for other in others:
        total = total + other
    dist.all_gather_into_tensor(sent, total)
    return sent[: len(mine)]
