"""The part that rewards a completion in the requested format, right or wrong. (pure)"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import Case


@dataclass(frozen=True)
class Format:
    kept: float = 1.0
    """Reward for the requested format."""
    broken: float = 0.0
    """Reward for any other format."""
    name: ClassVar[str] = "format"

    def __post_init__(self) -> None:
        if self.kept < self.broken:
            raise ValueError(f"`kept` ({self.kept}) must be at least `broken` ({self.broken})")

    def __call__(self, case: Case[object, object]) -> float:
        return self.kept if case.is_well_formed else self.broken
