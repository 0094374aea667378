"""What one rank computes by itself in a step, timed without any wait for other ranks. (pure but for the clock)

A rank that waits in a collective takes as long as the slowest one. So only work between two collectives is timed, and
only as a duration: the clocks of two hosts are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct, structs

from profiles.metrics import of_node


class OwnWork(Struct, frozen=True):
    """node: its host, as the scheduler calls it; empty: nobody named it. seconds: of its own computing. The other
    fields say how much it had to compute, because shares are never quite equal."""

    node: str = ""
    seconds: float = 0.0
    read: int = 0
    """Tokens of distinct prompts."""
    decoded: int = 0
    """Tokens of completions."""
    longest: int = 0
    """The longest completion of each call, summed: decode passes that no batching avoids."""
    trained: int = 0
    """Tokens of its passes in scoring and update."""


class Stopwatch:
    """Adds up one rank's own work until it is taken."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found = OwnWork()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Wraps work in which this rank waits for no other, and which leaves nothing queued on the GPU."""
        began = self._clock()
        yield
        self.add(seconds=self._clock() - began)

    def add(self, **more: float) -> None:
        self._found = structs.replace(
            self._found, **{name: getattr(self._found, name) + value for name, value in more.items()}
        )

    def take(self, node: str) -> OwnWork:
        """Everything since the last call."""
        found, self._found = structs.replace(self._found, node=node), OwnWork()
        return found


def node_metrics(ranks: Sequence[OwnWork]) -> Mapping[str, float]:
    """Metrics of the nodes, each that of its slowest rank. Empty if a node has no name, or nothing was timed. (pure)"""
    slowest: dict[str, OwnWork] = {}
    for one in sorted(ranks, key=lambda one: one.seconds):
        slowest[one.node] = one
    if "" in slowest or not all(one.seconds for one in slowest.values()):
        return {}
    return {
        of_node(node, figure): float(value)
        for node, one in sorted(slowest.items())
        for figure, value in structs.asdict(one).items()
        if figure != "node"
    }
