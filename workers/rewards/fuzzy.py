"""The part that rewards a text for its likeness to a column of the row: the ratio of difflib. (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import ClassVar, Literal

from workers.problems.problem import Problem
from workers.rewards.given import Where, bad_row, stretch, texts
from workers.rewards.normal import Normal
from workers.rewards.reward import Case

LONGEST = 300
"""Units of a text that is compared. The time of the worst text grows with the third power: half a second here."""


@dataclass(frozen=True)
class Fuzzy(Normal):
    column: str = ""
    """The column with the wanted text, or a list of texts, of which the most alike counts; empty: the right answer."""
    where: Where = "final"
    """What is compared: `all`, the `final` text after the thoughts, or the `marked` answer."""
    threshold: float = 0.0
    """Likeness below which nothing is earned."""
    unit: Literal["character", "word"] = "character"
    """What is compared one by one. At most 300 of them: a longer completion earns 0."""
    name: ClassVar[str] = "fuzzy"

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"`threshold` ({self.threshold}) must be from 0 to 1: it is a likeness")

    def __call__(self, case: Case[Problem, object]) -> float:
        """Twice the units in matching blocks by all units of both: 1 for the same text, 0 for nothing in common."""
        wanted = [self._units(text) for text in texts(case.problem, self.column, self.name)]
        longest = max(map(len, wanted))
        if longest > LONGEST:
            raise bad_row(case.problem, self.name, f"compares at most {LONGEST} {self.unit}s, but is given {longest}")
        text = stretch(case, self.where)
        if text is None:
            return 0.0
        found = self._units(text)
        likeness = max(_likeness(found, one) for one in wanted)
        return likeness if likeness >= self.threshold else 0.0

    def _units(self, text: str) -> list[str]:
        text = self.normal(text)
        return text.split() if self.unit == "word" else list(text)


def _likeness(found: list[str], wanted: list[str]) -> float:
    if found == wanted:
        return 1.0
    return 0.0 if len(found) > LONGEST else SequenceMatcher(None, found, wanted, autojunk=False).ratio()
