"""One rank of GRPO."""

from __future__ import annotations

from typing import Any

from workers.grpo.entropy import EntropyMask
from workers.grpo.rows import Row
from workers.grpo.update import GroupUpdate
from workers.grpo.worst_case import longest, rehearse
from workers.memory.backoff import Sizes
from workers.rank_group.replica import Handlers, Replica, Setting
from workers.rank_group.wire import Call
from workers.rollout.engine import Request, Sampling


class Apply(Call[tuple[bool, dict[str, float]]]):
    """All rows of a step; each rank selects its own part."""

    step: int
    rate: float
    rows: list[Row]
    advantages: list[float]
    left_out: list[Row]


class GrpoReplica(Replica):
    def __init__(self, setting: Setting) -> None:
        self.mask = EntropyMask(setting.profile.grpo)
        super().__init__(setting)
        for item in (self.mask, self.update.source):  # each rank updates its own copy, from the same numbers
            self._items[item.filename] = item

    def make_update(self) -> GroupUpdate:
        return GroupUpdate(self.model, self.optimizer, self.profile, self.mask, self.parallel, phase=self.memory.phase)

    @property
    def handlers(self) -> Handlers:
        return {**super().handlers, Apply: self.apply}

    def apply(self, asked: Apply) -> tuple[bool, dict[str, float]]:
        """Whether all numbers were finite, and the metrics."""
        found: tuple[bool, dict[str, float]] = self.update.apply(
            asked.step, asked.rate, asked.rows, asked.advantages, asked.left_out
        )
        return found

    @property
    def sizes(self) -> Sizes:
        now = self.update.sizes
        return Sizes(
            micro_batch=self.micro_batch(now.rollouts),
            head_rows=now.head_rows,
            rollout_rows=self.engine.max_rows,
            graphs=self.keeps_graphs,
        )

    def resize(self, sizes: Sizes) -> None:
        self.update.resize(sizes.micro_batch, sizes.head_rows)
        super().resize(sizes)

    def longest(self) -> tuple[list[Request], Sampling]:
        return longest(self.engine, self.profile, self.model)

    def rehearse(self) -> dict[str, Any]:
        return rehearse(self.model, self.engine, self.update, self.profile, self.memory)
