"""The part that rewards a right answer: its score, by default 1 or 0. (pure)"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import Case, Scored


@dataclass(frozen=True)
class Verifier:
    wrong: float = 0.0
    """Reward for a wrong answer."""
    needs_form: bool = False
    """Whether an answer in the wrong format earns 0, right or wrong, because the part `format` covers it."""
    name: ClassVar[str] = "correct"

    def __post_init__(self) -> None:
        if self.wrong >= 1:
            raise ValueError(f"`wrong` ({self.wrong}) must be less than 1, which a right answer earns")

    def __call__(self, case: Case[object, Scored]) -> float:
        if self.needs_form and not case.is_well_formed:
            return 0.0
        return case.verdict.score or self.wrong
