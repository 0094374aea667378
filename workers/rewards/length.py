"""The part that a right answer pays for its length: `grpo.length_penalty`. (pure)

Wrong answers would learn length alone.
"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import Case


@dataclass(frozen=True)
class Length:
    weight: float
    name: ClassVar[str] = "length"

    def __call__(self, case: Case) -> float:
        return -(self.weight * case.share * case.verdict.correct)
