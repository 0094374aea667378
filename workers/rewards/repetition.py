"""The part that penalises repetition: the share of n-grams that stood before (arXiv 2502.03373). (pure)"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
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
        grams = [
            tuple(units[start : start + self.size])
            for units in self._stretches(case)
            for start in range(len(units) - self.size + 1)
        ]
        return len(set(grams)) / len(grams) - 1.0 if grams else 0.0

    def _stretches(self, case: Case[object, object]) -> list[Sequence[Any]]:
        """The units of the text; of tokens, those of each reply."""
        if self.unit != "token":
            return [case.text if self.unit == "character" else case.text.lower().split()]
        ids, is_own = case.rollout.completion_ids, case.rollout.is_own
        if not is_own:
            return [ids]
        told = groupby(zip(is_own, ids, strict=True), key=lambda one: one[0])
        return [[token for _, token in stretch] for own, stretch in told if own]
