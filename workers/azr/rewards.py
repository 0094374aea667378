"""What a proposal and an answer earn. (pure)

Source: arXiv 2505.03335, section 3; where paper and code differ, the published runs' choice is the default.
Infrastructure failures earn nothing here: such rows are dropped before rewards are given, never counted as wrong.
"""

from __future__ import annotations

INVALID = -1.0
"""Malformed text, or a proposal that is not a valid task."""
WRONG = -0.5
CORRECT = 1.0


def learnability(successes: float, n: int) -> float:
    """1 - p for a solve rate p strictly between 0 and 1, else 0: always or never solved teaches nothing."""
    if n < 2 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} rollouts: a solve rate needs at least 2 rollouts")
    return 1.0 - successes / n if 0 < successes < n else 0.0


def proposer_reward(successes: float, n: int, *, is_well_formed: bool = True, zero_reward: float = -0.5) -> float:
    """Reward of a *valid* proposal; an invalid one earns INVALID. Malformed wording costs the reward, not the task.

    successes: the sum of its n rollouts' scores. zero_reward: what is paid where they teach nothing.
    """
    if not is_well_formed:
        return INVALID
    learn = learnability(successes, n)
    return learn if learn > 0 else zero_reward


def solver_reward(*, is_well_formed: bool, score: float) -> float:
    """score: 1 for a correct answer, 0 for a wrong one; a program that holds in part is worth its share."""
    if not is_well_formed:
        return INVALID
    if score == 0:
        return WRONG
    return CORRECT if score == 1 else score
