"""All-reduce over the ranks of a profile: whether the sum is right on each rank, and how fast each rank is.

The ranks start and meet as those of an attempt do (`workers/rank_group`), with this replica in place of a model's. All
ranks of an all-reduce end together, so its time names no slow rank: for that, neighbours exchange data in pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from workers.contract import Outcome, Result
from workers.models.torch_setup import device_of, set_up_torch
from workers.node_contract import RankFacts
from workers.rank_group.leader import RankGroup
from workers.rank_group.replica import Handlers, Replica, Setting
from workers.rank_group.wire import Call
from workers.runtime import Attempt

PERIOD = 251
"""Of the pattern that is summed. Sums of over 300 ranks stay exact in float32."""
ROUNDS = 4
MEBIBYTES = {"cpu": 4, "cuda": 256}


class Reduce(Call[RankFacts]):
    """Sum a pattern over all ranks, then exchange data in pairs."""


class Reduction(Replica):
    """A rank without a model."""

    def __init__(self, setting: Setting) -> None:
        self.profile = setting.profile
        self.device = device_of(self.profile)
        set_up_torch(self.profile, isolate=False)
        self.group = setting.join(self.device)

    @property
    def handlers(self) -> Handlers:
        return {Reduce: self.reduce}

    def reduce(self, asked: Reduce) -> RankFacts:
        rank, size = self.group.rank, self.group.size
        count = (MEBIBYTES[self.device.type] << 20) // 4
        pattern = (torch.arange(count, device=self.device) % PERIOD).float()
        right = pattern * (size * (size + 1) // 2)
        mine = pattern * (rank + 1)
        seconds = self._timed(lambda: dist.all_reduce(mine))
        wrong = int((mine != right).sum())
        again = torch.zeros_like(mine)
        seconds = min([seconds, *(self._timed(lambda: dist.all_reduce(again)) for _ in range(ROUNDS))])
        inside, between = rings(self.profile.run.hosts, self.profile.run.gpus)
        return RankFacts(
            rank,
            wrong,
            2 * (size - 1) / size * mine.nbytes / seconds / 1e9,
            self._exchanged(mine, inside),
            self._exchanged(mine, between),
        )

    def _exchanged(self, data: torch.Tensor, of: Sequence[Sequence[int]]) -> float:
        """The best speed with a neighbour, in GB/s of both directions; 0 without one."""
        best, theirs = 0.0, torch.empty_like(data)
        for turn in range(3):
            peers = [partner(ring, self.group.rank, turn) for ring in of]
            other = next((peer for peer in peers if peer is not None), None)
            for _ in range(2):  # the first connects
                self.group.total([0.0])
                if other is not None:
                    seconds = self._timed(lambda peer=other: _swap(data, theirs, peer, self.group.rank))  # type: ignore[misc]
                    best = max(best, 2 * data.nbytes / seconds / 1e9)
        return best

    def _timed(self, work: Callable[[], object]) -> float:
        self._finish()
        began = time.perf_counter()
        work()
        self._finish()
        return time.perf_counter() - began

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _swap(mine: torch.Tensor, theirs: torch.Tensor, peer: int, rank: int) -> None:
    """Both directions at once."""
    sent, received = dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)
    for one in dist.batch_isend_irecv([sent, received] if rank < peer else [received, sent]):
        one.wait()


def rings(hosts: int, gpus: int) -> tuple[list[list[int]], list[list[int]]]:
    """Rings of ranks: those of each host, and for each GPU of a host those in its place on all hosts. (pure)"""
    inside = [[host * gpus + place for place in range(gpus)] for host in range(hosts)]
    between = [[host * gpus + place for host in range(hosts)] for place in range(gpus)]
    return inside, between


def partner(ring: Sequence[int], rank: int, turn: int) -> int | None:
    """The neighbour of a rank in one of three turns, in which no rank has two: even pairs, odd pairs, and the pair that
    closes a ring of odd length. None: it waits, or the ring is not its own. (pure)"""
    if rank not in ring or len(ring) < 2:
        return None
    at, size = ring.index(rank), len(ring)
    if turn == 2:
        return {0: ring[-1], size - 1: ring[0]}.get(at) if size % 2 and size > 2 else None
    paired = at + 1 if at % 2 == turn else at - 1
    if size % 2 and not 0 <= paired < size:
        return None
    return ring[paired % size] if size > 2 or turn == 0 else None


def reduction(tell: Callable[[list[RankFacts]], None]) -> Callable[[Attempt], Result]:
    """The work of host 0, as an attempt. tell: gets the facts of all ranks."""

    def job(attempt: Attempt) -> Result:
        with RankGroup(attempt, kind="node_check") as ranks:
            ranks.start(None)
            ranks.lead(Reduction, None)
            tell(ranks.call(Reduce()))
        return Result(attempt.spec.token, "train", Outcome.DONE, 0, 0)

    return job
