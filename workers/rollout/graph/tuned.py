"""Which way to divide a product is the fastest on this card: measured once, and kept on disk by card and driver.

Where K is split decides in which order sums are added. So a measured choice counts only once it is on disk, where a
resumed run finds it again; otherwise the first one counts, which nothing but the sizes decides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from workers.models.fast_graphs import CAPTURING, capture_stream
from workers.rollout.graph.cuts import Cut
from workers.rollout.graph.made_once import is_kept, kept

ROUNDS, REPLAYS = 5, 2
Key = tuple[str | int, ...]
"""A kernel, and the sizes that it divides."""


class Tuned:
    """The cuts of one card."""

    def __init__(self, facts: Mapping[str, object]) -> None:
        """facts: of card, driver and sources, on which a kernel's time depends."""
        self._facts = dict(facts)
        self._chosen: dict[Key, Cut] = {}

    def of(self, key: Key, cuts: Sequence[Cut]) -> Cut:
        """The cut for `key`. cuts: all that there are, the first of which counts if none was measured."""
        return self._chosen[key] if self.knows(key) else cuts[0]

    def knows(self, key: Key) -> bool:
        """Whether it was measured, here or by an earlier process."""
        return key in self._chosen

    def choose(self, key: Key, cuts: Sequence[Cut], time: Callable[[], float]) -> Cut:
        """The fastest of `cuts`, from now on that for `key`. time: that of the kernel with the cut that `of` returns;
        it is not called if there is but one, or if an earlier process has chosen."""
        if len(cuts) == 1:
            self._chosen[key] = cuts[0]
            return cuts[0]

        def measured() -> int:
            times = []
            for cut in cuts:
                with self._trying(key, cut):
                    times.append(time())
            return times.index(min(times))

        facts = self._facts | {"key": key, "cuts": cuts}
        number = kept(facts, measured, int)
        self._chosen[key] = cuts[number if is_kept(facts) else 0]
        return self._chosen[key]

    @contextmanager
    def _trying(self, key: Key, cut: Cut) -> Iterator[None]:
        self._chosen[key] = cut
        try:
            yield
        finally:
            del self._chosen[key]


def facts_of(device: torch.device) -> dict[str, object]:
    """What tells one card from another, and the version of its driver."""
    from cuda.bindings import driver

    from workers.rollout.graph.cuda import checked

    of_card = torch.cuda.get_device_properties(device)
    sizes = of_card.multi_processor_count, of_card.total_memory, of_card.major, of_card.minor
    return {"card": of_card.name, "sizes": sizes, "driver": checked(driver.cuDriverGetVersion())}


def microseconds(step: Callable[[], None], device: torch.device) -> float:
    """Of a step that has run before, as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with CAPTURING, torch.cuda.graph(graph, stream=capture_stream(device), capture_error_mode="thread_local"):
        step()
    event: Any = torch.cuda.Event
    graph.replay()
    times: list[float] = []
    for _ in range(ROUNDS):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / REPLAYS)
    return statistics.median(times) * 1e3
