"""How far a run has read its problem file, and how many of its answers are right. (pure)

Does not apply to self-play, which finds its own tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.display.wording import count, percent
from profiles.metrics import ACCURACY, PROBLEMS, PROBLEMS_DRAWN, STAGE, STAGES
from state.history import StepFacts

NEWEST = 20
"""Number of recent steps over which the accuracy is averaged."""


@dataclass(frozen=True)
class Reading:
    """drawn: problems drawn since the run began, including repeats. stage: 0 without a curriculum."""

    problems: int
    drawn: int
    accuracy: float
    steps: int
    stage: int = 0
    stages: int = 0

    @property
    def epoch(self) -> int:
        """Counted from 1."""
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
    """steps: oldest first. None if the newest steps do not report a place in a problem file."""
    newest = [one.metrics for one in steps[-NEWEST:] if ACCURACY.name in one.metrics]
    if not newest or not newest[-1].get(PROBLEMS.name):
        return None
    last = newest[-1]
    return Reading(
        problems=int(last[PROBLEMS.name]),
        drawn=int(last.get(PROBLEMS_DRAWN.name, 0)),
        accuracy=sum(one[ACCURACY.name] for one in newest) / len(newest),
        steps=len(newest),
        stage=int(last.get(STAGE.name, 0)),
        stages=int(last.get(STAGES.name, 0)),
    )
