"""Who takes part: the process group of one attempt's ranks, with the few small sums that they agree through."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from workers.failures import is_out_of_memory

PATIENCE = timedelta(days=7)
"""No time-out of its own: a rank that is gone ends all others at once, one that hangs is the master's business."""


@dataclass(frozen=True)
class Group:
    """rank 0 leads. size 1: there is nobody to wait for, and nothing is exchanged."""

    rank: int = 0
    size: int = 1

    def exchange(self, values: Tensor) -> Tensor:
        """The sum over all ranks. values: on the CPU; what other ranks have as 0 arrives unchanged."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks."""
        found: list[float] = self.exchange(torch.tensor(list(values), dtype=torch.float64)).tolist()
        return found

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of all ranks, each by itself."""
        found = torch.tensor(list(values), dtype=torch.float64)
        if self.size > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return list(found.tolist())

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Around each rank's own work: raises out-of-memory on all where one of them ran out of it, so that all halve
        the same and repeat together. An error of another kind is nobody else's: it ends its process, and the attempt.
        """
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                self.total([1.0])
            raise
        if ranks_out := int(self.total([0.0])[0]):
            raise RuntimeError(f"out of memory on {ranks_out} of the other {self.size - 1} GPUs")


ALONE = Group()


def join(store: Path, rank: int, size: int, device: torch.device) -> Group:
    """Meet the other ranks at the file `store`; returns when all are there."""
    # One host: nothing has to be found in a network, and a machine's name may not lead to itself.
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, "lo")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    meeting = dist.FileStore(str(store), size)  # type: ignore[attr-defined]
    meeting.set_timeout(PATIENCE)
    dist.init_process_group(backend, store=meeting, rank=rank, world_size=size, timeout=PATIENCE)
    return Group(rank, size)
