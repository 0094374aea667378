"""Likely causes if no group teaches anything for many steps, from the facts of those steps. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from msgspec import Struct

from profiles.schema import Grpo

MOST = 0.9
"""A share above which a statement is made about all rollouts."""


class StepFacts(Struct, frozen=True):
    """Facts of one step. groups: drawn; uniform: those with equal rewards. Shares are of all rollouts."""

    groups: int
    uniform: int
    accuracy: float = 0.0
    """Share of right answers; a reward may also pay for form. Older checkpoints lack it."""
    truncated_share: float = 0.0
    unanswered_share: float = 0.0
    """Share of rollouts without an answer."""
    distinct_share: float = 1.0
    """Distinct completions per rollout, within groups; 1 / group_size if all of each group are the same."""

    @property
    def teaches(self) -> bool:
        return self.uniform < self.groups


class Finding(Struct, frozen=True):
    """`steps`: how many in a row taught nothing. `reasons`: the likeliest first, each with what to change."""

    steps: int
    reasons: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"no group of the last {self.steps} steps had different rewards: " + "; ".join(self.reasons)


def all_uniform(history: Sequence[StepFacts], grpo: Grpo) -> Finding | None:
    """A finding once the last `uniform_patience` steps, and all since one that taught, were entirely uniform.

    Such steps do not update the policy, so they repeat until the problems or the sampling change.
    """
    silent: list[StepFacts] = []
    for step in reversed(history):
        if step.teaches:
            break
        silent.append(step)
    if len(silent) < grpo.uniform_patience:
        return None
    return Finding(len(silent), tuple(_reasons(silent, grpo)))


def _reasons(steps: Sequence[StepFacts], grpo: Grpo) -> list[str]:
    """Ordered from cause to symptom: a truncated completion has no answer, and a missing answer counts as wrong."""
    right, cut, unanswered, distinct = (
        fsum(getattr(step, name) for step in steps) / len(steps)
        for name in ("accuracy", "truncated_share", "unanswered_share", "distinct_share")
    )
    found = []
    if cut >= MOST:
        found.append("completions are cut before their answer (raise sampling.max_completion_tokens)")
    elif unanswered >= MOST:
        found.append(
            "completions mark no answer (look at one; the prompt must ask for \\boxed{}, see model.prompt_style)"
        )
    if distinct <= 1.5 / grpo.group_size:
        found.append("completions of a group are the same (raise sampling.temperature)")
    if right >= MOST:
        found.append('every problem is solved (take harder ones, or sent_saturated = "drop")')
    elif not found and right < 1 - MOST:
        found.append("no problem is ever solved (take easier ones, a larger group_size, or a better model)")
    if not found:
        found.append("each problem is always or never solved (raise group_size, or dynamic_sampling = true)")
    return found
