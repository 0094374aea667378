"""The part that rewards a text equal to a column of the row, or to one of the texts in it. (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workers.problems.problem import Problem
from workers.rewards.given import Where, stretch, texts
from workers.rewards.normal import Normal
from workers.rewards.reward import Case


@dataclass(frozen=True)
class Exact(Normal):
    column: str = ""
    """The column with the wanted text, or a list of texts; empty: the right answer."""
    where: Where = "final"
    """What is compared: `all`, the `final` text after the thoughts, or the `marked` answer."""
    name: ClassVar[str] = "exact"

    def __call__(self, case: Case[Problem, object]) -> float:
        wanted = texts(case.problem, self.column, self.name)
        found = stretch(case, self.where)
        return float(found is not None and self.normal(found) in map(self.normal, wanted))
