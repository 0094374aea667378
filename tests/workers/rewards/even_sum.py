"""A reward of one's own, whole in this file: half a point for a completion whose token ids have an even sum."""

from __future__ import annotations

from typing import Any

from workers.rewards.reward import Case


class EvenSum:
    name = "even"

    def __call__(self, case: Case[Any, Any]) -> float:
        return 0.5 * (sum(case.rollout.completion_ids) % 2 == 0)
