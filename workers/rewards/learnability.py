"""The part that rewards a proposal for a learnable task: the harder the task, the more, if it is ever solved. (pure)"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import ProposerCase


@dataclass(frozen=True)
class Learnability:
    zero_reward: float
    """Reward for a task that is always or never solved: `azr.proposer_zero_reward`."""
    name: ClassVar[str] = "learnability"

    def __call__(self, case: ProposerCase) -> float:
        """0 for an invalid task, and for a known task that is not estimated again."""
        found = case.verdict
        if not case.is_well_formed or not found.n:
            return 0.0
        return learnability(found.successes, found.n) or self.zero_reward


def learnability(successes: float, n: int) -> float:
    """1 - p for a solve rate p strictly between 0 and 1, else 0: a task always or never solved teaches nothing.

    successes: sum of the scores of `n` rollouts. Raises ValueError if n < 2 or successes is outside 0 to n.
    """
    if n < 2 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} rollouts: a solve rate needs at least 2 rollouts")
    return 1.0 - successes / n if 0 < successes < n else 0.0
