"""How far a run that trains on a file of problems has read it, and how many of its answers are right. (pure)

Self-play has no file: it finds its tasks, and they are counted elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.display.wording import count, percent
from state.history import StepFacts

NEWEST = 20
"""Steps whose rollouts the accuracy is that of."""


@dataclass(frozen=True)
class Reading:
    """drawn: problems since the run began, repeats among them. stage: 0 where there is no curriculum."""

    problems: int
    drawn: int
    accuracy: float
    steps: int
    stage: int = 0
    stages: int = 0

    @property
    def epoch(self) -> int:
        """From 1."""
        return max(0, self.drawn - 1) // self.problems + 1

    @property
    def row(self) -> int:
        """Problems drawn in this epoch."""
        return self.drawn - (self.epoch - 1) * self.problems

    @property
    def place(self) -> str:
        if self.stage:
            where = f"stage {self.stage} of {self.stages}" if self.stage <= self.stages else "all stages"
            return f"{where}, {count(self.drawn)} drawn of {count(self.problems)}"
        return f"row {count(self.row)} of {count(self.problems)}, epoch {self.epoch}"

    @property
    def right(self) -> str:
        return f"{percent(self.accuracy)} right, last {count(self.steps)} steps"


def reading_of(steps: Sequence[StepFacts]) -> Reading | None:
    """steps: oldest first. None where the newest ones read no file, or tell no place in it."""
    newest = [one.metrics for one in steps[-NEWEST:] if "accuracy" in one.metrics]
    if not newest or not newest[-1].get("problems"):
        return None
    last = newest[-1]
    return Reading(
        problems=int(last["problems"]),
        drawn=int(last.get("problems_drawn", 0)),
        accuracy=sum(one["accuracy"] for one in newest) / len(newest),
        steps=len(newest),
        stage=int(last.get("stage", 0)),
        stages=int(last.get("stages", 0)),
    )
