"""The rollout engine that the profile names, serving at most `max_rows` requests side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiles.schema import Sampling as Knobs
from workers.rollout.engine import Request, Rollout, RolloutEngine, Sampling
from workers.rollout.native import NativeEngine

MAX_ROWS = 512


class Portions:
    """Any engine, asked for `max_rows` rollouts at a time: halving it halves the cache that a batch needs."""

    def __init__(self, engine: RolloutEngine, max_rows: int = MAX_ROWS) -> None:
        self.engine = engine
        self.max_rows = max_rows

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """Like prompt lengths come together; the rollouts are in the order of the requests."""
        order = sorted(range(len(requests)), key=lambda number: len(requests[number].prompt_ids))
        found: dict[int, Rollout] = {}
        for begin in range(0, len(order), self.max_rows):
            chosen = order[begin : begin + self.max_rows]
            rollouts = self.engine.generate([requests[number] for number in chosen], sampling)
            found.update(zip(chosen, rollouts, strict=True))
        return [found[number] for number in range(len(requests))]

    def shrink(self) -> None:
        self.max_rows = max(1, self.max_rows // 2)


def engine_of(model: Any, knobs: Knobs, reductions: int = 0) -> Portions:
    """reductions: how often the batch was halved, because memory ran out in earlier attempts."""
    engine: RolloutEngine
    if knobs.engine == "hf":
        from workers.rollout.hf import HfEngine

        engine = HfEngine(model)
    else:
        engine = NativeEngine(model)
    return Portions(engine, max(1, MAX_ROWS >> reductions))
