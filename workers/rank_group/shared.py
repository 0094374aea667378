"""What a trainer sees of several ranks: an engine and files of a checkpoint that look like those of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from workers.rank_group.replica import Generate, StateFile
from workers.rollout.engine import Request, Rollout, RolloutEngine, Sampling
from workers.rollout.partition import partition_requests


class Caller(Protocol):
    """A rank_group, as far as this is concerned."""

    size: int
    replica: Any

    def call(self, name: str, body: Any = None, bodies: Sequence[Any] | None = None) -> list[Any]: ...


class SharedEngine:
    """Requests divided by rank, drawn by each rank's own engine, and put together in their order.

    A request has its own stream of random numbers, so which rank draws it changes nothing.
    """

    has_queue = True

    def __init__(self, rank_group: Caller) -> None:
        self._rank_group = rank_group

    @property
    def engine(self) -> RolloutEngine:
        found: RolloutEngine = self._rank_group.replica.engine.engine
        return found

    @property
    def max_rows(self) -> int:
        """That each rank decodes side by side."""
        return int(self._rank_group.replica.engine.max_rows)

    @max_rows.setter
    def max_rows(self, rows: int) -> None:
        self._rank_group.call("set_rows", rows)

    def drop_cache(self) -> None:
        self._rank_group.call("drop_cache")

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        if not requests:
            return []
        shares = partition_requests(requests, self._rank_group.size, sampling.max_new_tokens)
        bodies = [Generate([requests[number] for number in share], sampling) for share in shares]
        found: dict[int, Rollout] = {}
        for share, rollouts in zip(shares, self._rank_group.call("generate", bodies=bodies), strict=True):
            found.update(zip(share, rollouts, strict=True))
        return [found[number] for number in range(len(requests))]

    def rest(self) -> None:
        self._rank_group.call("rest")

    def close(self) -> None:
        """Each rank's engine ends with its process."""


class RankFile:
    """A file of a checkpoint that is gathered from all ranks, and loaded by all. Registered."""

    def __init__(self, rank_group: Caller, filename: str) -> None:
        self._rank_group, self.filename = rank_group, filename

    def save(self, path: Path) -> None:
        self._rank_group.call("save", StateFile(self.filename, str(path)))

    def load(self, path: Path) -> None:
        self._rank_group.call("load", StateFile(self.filename, str(path)))
