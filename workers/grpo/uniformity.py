"""When step after step no group teaches anything: what may be the cause, from the facts of those steps. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from msgspec import Struct

from profiles.schema import Grpo

MOST = 0.9
"""Share of rollouts from which on something is said of all of them."""


class StepFacts(Struct, frozen=True):
    """Of one step. groups: drawn; uniform: of them without a difference. Shares are of all rollouts."""

    groups: int
    uniform: int
    accuracy: float = 0.0
    """Share of rollouts whose answer is right; a reward may also pay for their form. Older checkpoints tell none."""
    truncated_share: float = 0.0
    unanswered_share: float = 0.0
    """Rollouts in which no answer was found."""
    distinct_share: float = 1.0
    """Different completions per rollout, within groups; 1 / group_size where all of each group are the same."""

    @property
    def teaches(self) -> bool:
        return self.uniform < self.groups


class Finding(Struct, frozen=True):
    """`steps`: how many in a row taught nothing. `reasons`: likeliest first, each with what to change."""

    steps: int
    reasons: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"no group of the last {self.steps} steps had different rewards: " + "; ".join(self.reasons)


def all_uniform(history: Sequence[StepFacts], grpo: Grpo) -> Finding | None:
    """A finding once the last `uniform_patience` steps, and all since one that taught, were uniform throughout.

    A policy is not updated by such steps, so without a change of problems or sampling they go on for ever.
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
    """Ordered from cause to symptom: what is cut cannot answer, and what does not answer is wrong."""
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
