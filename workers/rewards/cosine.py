"""The part that rewards right answers more if short, and punishes wrong ones less if long: along a cosine. (pure)

The cosine reward of arXiv 2502.03373. It already says who is right, and so takes the place of `correct`.
"""

from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar

from workers.rewards.reward import Case, Scored


@dataclass(frozen=True)
class Cosine:
    right_short: float = 1.0
    """Reward of a right answer of length 0."""
    right_long: float = 0.5
    """Reward of a right answer of the maximum completion length."""
    wrong_short: float = -1.0
    """Reward of a wrong answer of length 0."""
    wrong_long: float = -0.5
    """Reward of a wrong answer of the maximum completion length."""
    cut: float = -1.0
    """Reward of a completion that was cut at the maximum length."""
    name: ClassVar[str] = "cosine"

    def __post_init__(self) -> None:
        worst, best = min(self.right_short, self.right_long), max(self.wrong_short, self.wrong_long, self.cut)
        if worst <= best:
            raise ValueError(f"a right answer could earn {worst}, and one that is wrong or cut {best}, no less")

    def __call__(self, case: Case[object, Scored]) -> float:
        """An answer that is partly right earns that part of the one and the rest of the other."""
        if case.is_truncated:
            return self.cut
        right = _along(case.share, self.right_short, self.right_long)
        wrong = _along(case.share, self.wrong_short, self.wrong_long)
        return wrong + case.verdict.score * (right - wrong)


def _along(share: float, short: float, long: float) -> float:
    """From `short` at share 0 to `long` at share 1."""
    return long + 0.5 * (short - long) * (1.0 + cos(pi * min(share, 1.0)))
