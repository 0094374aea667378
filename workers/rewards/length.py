"""The part that penalises a right answer for its length. (pure)

Wrong answers are exempt: their length would be all that they could learn from.
"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import Case, Scored


@dataclass(frozen=True)
class Length:
    weight: float = 1.0
    """Penalty of a right answer of the maximum length."""
    name: ClassVar[str] = "length"

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"`weight` ({self.weight}) must be at least 0: it is subtracted")

    def __call__(self, case: Case[object, Scored]) -> float:
        return -(self.weight * case.share * case.verdict.score)
