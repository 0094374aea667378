"""The process group of one attempt's ranks, and the small reductions by which they agree."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from profiles.errors import ExitCode, LonghaulError
from workers.failures import is_out_of_memory

PATIENCE = timedelta(days=7)
"""Long enough to disable the timeout: a lost rank ends all others at once, and the orchestrator handles hung ranks."""


@dataclass(frozen=True)
class Group:
    """Rank 0 leads. With size 1 there is no communication."""

    rank: int = 0
    size: int = 1

    def exchange(self, values: Tensor) -> Tensor:
        """The sum over all ranks. values: a CPU tensor. A value that is 0 on all other ranks comes back unchanged."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks."""
        found: list[float] = self.exchange(torch.tensor(list(values), dtype=torch.float64)).tolist()
        return found

    def largest(self, values: Sequence[float]) -> list[float]:
        """The maximum over all ranks, element by element."""
        found = torch.tensor(list(values), dtype=torch.float64)
        if self.size > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return list(found.tolist())

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Wraps each rank's own work. If one rank runs out of memory, raises out-of-memory on all ranks, so that they
        shrink alike and retry together. Any other error ends its process, and with it the attempt.
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


LOOPBACK = "lo"


@dataclass(frozen=True)
class Way:
    """Where ranks meet, and how they reach each other. key: shared secret of ranks on several hosts; else empty."""

    store: Any
    """A Store of torch.distributed."""
    interface: str = LOOPBACK
    key: bytes = b""


def by_file(path: Path, size: int) -> Way:
    """The way for ranks of one host. Needs no network: a machine's own host name may not resolve to itself."""
    store = dist.FileStore(str(path), size)  # type: ignore[attr-defined]
    store.set_timeout(PATIENCE)
    return Way(store)


def join(way: Way, rank: int, size: int, device: torch.device) -> Group:
    """Join the process group; returns once all ranks have. Raises LonghaulError (RANK) for a peer without the key."""
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, way.interface)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=way.store, rank=rank, world_size=size, timeout=PATIENCE)
    if way.key:
        _prove_peers(way.key, rank, size)
    return Group(rank, size)


def _prove_peers(key: bytes, rank: int, size: int) -> None:
    """Verify that every peer knows the key, over the very connections that Gloo will use: Gloo accepts whoever connects
    first. NCCL needs no such check: its peers need an id that only the authenticated store gives out."""
    mine = torch.stack([_proof(key, rank, other) for other in range(size)])  # [size, 32]
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine)
    for other in range(size):
        if not torch.equal(theirs[other], _proof(key, other, rank)):
            raise LonghaulError(
                f"what answers for rank {other} does not know the key of this attempt",
                kept="the head; nothing was trained with it",
                next_command="python -m orchestrator run",
                exit_code=ExitCode.RANK,
            )


def _proof(key: bytes, sender: int, receiver: int) -> Tensor:
    digest = hmac.new(key, f"rank {sender} to {receiver}".encode(), hashlib.sha256).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
