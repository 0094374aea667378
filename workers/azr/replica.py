"""One rank of self-play."""

from __future__ import annotations

from typing import Any

from workers.azr.rows import Row
from workers.azr.update import PolicyUpdate
from workers.azr.worst_case import longest, rehearse
from workers.memory.backoff import Sizes
from workers.models.log_probs import head_rows_for
from workers.rank_group.replica import Handlers, Replica
from workers.rank_group.wire import Call
from workers.rollout.engine import Request, Sampling
from workers.rollout.select import tis_cap_of
from workers.tasks.kinds.registry import tasks_of


class Apply(Call[tuple[bool, dict[str, float]]]):
    """Apply a step's rows. Every rank gets all rows and selects its own part."""

    step: int
    rows: list[Row]
    advantages: list[float]


class AzrReplica(Replica):
    def make_update(self) -> PolicyUpdate:
        profile = self.profile
        tasks_of(profile.azr.tasks)  # registers the profile's own kinds of task: each rank sorts rows by kind
        return PolicyUpdate(
            self.model,
            self.optimizer,
            profile.optimizer,
            profile.sampling.temperature,
            self.parallel,
            phase=self.memory.phase,
            head_rows=head_rows_for(profile, self.model),
            tis_cap=tis_cap_of(profile),
            shuffle_seed=profile.run.seed if profile.azr.variants.minibatch_order == "shuffle" else None,
            rollout_tokens=profile.azr.loss_constant if profile.azr.loss_divisor == "constant" else None,
        )

    @property
    def handlers(self) -> Handlers:
        return {**super().handlers, Apply: self.apply}

    def apply(self, asked: Apply) -> tuple[bool, dict[str, float]]:
        """Returns whether all numbers were finite, and the step's metrics."""
        with self.phase("train"):
            found: tuple[bool, dict[str, float]] = self.update.apply(asked.step, asked.rows, asked.advantages)
        return found

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            micro_batch=self.micro_batch(self.profile.optimizer.micro_batch_size),
            head_rows=self.update.head_rows,
            rollout_rows=self.engine.max_rows,
            graphs=self.keeps_graphs,
        )

    def resize(self, sizes: Sizes) -> None:
        self.update.resize(sizes.micro_batch, sizes.head_rows)
        super().resize(sizes)

    def longest(self) -> tuple[list[Request], Sampling]:
        return longest(self.engine, self.profile)

    def rehearse(self) -> dict[str, Any]:
        return rehearse(self.model, self.engine, self.update, self.profile, self.memory)
