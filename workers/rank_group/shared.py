"""The trainer's view of several ranks: an engine and checkpoint files that look like those of a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from workers.rank_group.calls import DropCache, Generate, Load, Rest, Save, SetRows
from workers.rank_group.replica import Replica
from workers.rank_group.wire import Call, Found
from workers.rollout.conversation import by_rounds
from workers.rollout.engine import OnEnd, Request, Respond, Rollout, RolloutEngine, Sampling
from workers.rollout.partition import partition_requests


class Caller(Protocol):
    """The part of a rank group that this module uses."""

    size: int
    replica: Replica

    def call(self, asked: Call[Found]) -> list[Found]: ...
    def call_each(self, asked: Sequence[Call[Found]]) -> list[Found]: ...


class SharedEngine:
    """Partitions requests among ranks, has each rank's engine draw its part, and restores the order.

    Each request has its own random stream, so it does not matter which rank draws it.
    """

    has_queue = True

    def __init__(self, rank_group: Caller) -> None:
        self._rank_group = rank_group

    @property
    def engine(self) -> RolloutEngine:
        return self._rank_group.replica.engine.engine

    @property
    def max_rows(self) -> int:
        """Rollouts that each rank decodes side by side."""
        return self._rank_group.replica.engine.max_rows

    def set_rows(self, rows: int) -> None:
        self._rank_group.call(SetRows(rows))

    def drop_cache(self) -> None:
        self._rank_group.call(DropCache())

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None = None) -> list[Rollout]:
        """on_end: told each rollout of this rank when it ends, and those of the other ranks together."""
        if not requests:
            return []
        shares = partition_requests(requests, self._rank_group.size, sampling.max_new_tokens)
        asked = [Generate([requests[number] for number in share], sampling) for share in shares]
        found: dict[int, Rollout] = {}
        mine = shares[0]
        with self._rank_group.replica.listening(on_end and (lambda number, one: on_end(mine[number], one))):
            answers = self._rank_group.call_each(asked)
        for share, rollouts in zip(shares, answers, strict=True):
            found.update(zip(share, rollouts, strict=True))
        if on_end is not None:
            for number in found.keys() - set(mine):
                on_end(number, found[number])
        return [found[number] for number in range(len(requests))]

    def converse(
        self, requests: Sequence[Request], sampling: Sampling, respond: Respond, on_end: OnEnd | None = None
    ) -> list[Rollout]:
        """A conversation per request. Ranks ask anew each turn, because only this one hears the answers."""
        return by_rounds(self.generate, requests, sampling, respond, on_end)

    def rest(self) -> None:
        self._rank_group.call(Rest())

    def close(self) -> None:
        """Does nothing: each rank's engine ends with its process."""


class RankFile:
    """A checkpoint file that is gathered from all ranks and loaded by all. Registered."""

    def __init__(self, rank_group: Caller, filename: str) -> None:
        self._rank_group, self.filename = rank_group, filename

    def save(self, path: Path) -> None:
        self._rank_group.call(Save(self.filename, str(path)))

    def load(self, path: Path) -> None:
        self._rank_group.call(Load(self.filename, str(path)))
