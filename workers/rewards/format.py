"""The part for a response in the form that was asked for, right or wrong: `grpo.format_reward`. (pure)"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import Case
from workers.verifiers.answers import is_formatted


@dataclass(frozen=True)
class Format:
    weight: float
    name: ClassVar[str] = "format"

    def __call__(self, case: Case) -> float:
        return self.weight if is_formatted(case.text, truncated=case.is_truncated) else 0.0
