"""The part that penalises a right answer for its length. (pure)

Wrong answers are exempt: their length would be all that they could learn from.
"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import Case, Scored


@dataclass(frozen=True)
class Length:
    name: ClassVar[str] = "length"

    def __call__(self, case: Case[object, Scored]) -> float:
        return -(case.share * case.verdict.score)
