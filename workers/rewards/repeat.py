"""The part that rewards a valid but known proposal that is not estimated again: `azr.repeat_reward`. (pure)"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import ProposerCase
from workers.tasks.validate_proposals import REPEAT


@dataclass(frozen=True)
class Repeat:
    weight: float
    name: ClassVar[str] = "repeat"

    def __call__(self, case: ProposerCase) -> float:
        found = case.verdict
        is_flat = case.is_well_formed and found.checked.reason == REPEAT and not found.n
        return self.weight if is_flat else 0.0
