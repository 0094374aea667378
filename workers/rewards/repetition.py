"""The part that penalises repetition: the share of n-grams that stood before (arXiv 2502.03373). (pure)"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from workers.rewards.reward import Case


@dataclass(frozen=True)
class Repetition:
    size: int = 3
    """Units in an n-gram."""
    unit: Literal["word", "character", "token"] = "word"
    """What n-grams are made of: words between blanks in lower case; characters, for languages that are written without
    blanks; or the model's tokens."""
    name: ClassVar[str] = "repetition"

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 100:
            raise ValueError(f"`size` ({self.size}) must be from 1 to 100")

    def __call__(self, case: Case[object, object]) -> float:
        """From 0, if no n-gram stands twice or there is none, to nearly -1."""
        units = self._units(case)
        count = len(units) - self.size + 1
        if count < 1:
            return 0.0
        different = {tuple(units[start : start + self.size]) for start in range(count)}
        return len(different) / count - 1.0

    def _units(self, case: Case[object, object]) -> Sequence[Any]:
        if self.unit == "token":
            return case.rollout.completion_ids
        return case.text if self.unit == "character" else case.text.lower().split()
