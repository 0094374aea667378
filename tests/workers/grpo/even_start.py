"""A reward of one's own, whole in this file: half a point for a completion whose first token has an even number."""

from __future__ import annotations

from workers.rewards.reward import Case


class EvenStart:
    name = "even"

    def __call__(self, case: Case) -> float:
        return 0.5 * (case.rollout.completion_ids[0] % 2 == 0)
