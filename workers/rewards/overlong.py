"""The part that penalises what is nearly too long: DAPO's overlong punishment (arXiv 2503.14476, eq. 13). (pure)"""

from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import Case


@dataclass(frozen=True)
class Overlong:
    target: int
    """Tokens from which the penalty is whole: L_max, as a rule `sampling.max_completion_tokens`."""
    buffer: int
    """Tokens before `target` over which it grows from 0: L_cache."""
    name: ClassVar[str] = "overlong"

    def __post_init__(self) -> None:
        if not 1 <= self.buffer <= self.target:
            raise ValueError(
                f"`buffer` ({self.buffer}) must be from 1 to `target` ({self.target}): it is the end of it"
            )

    def __call__(self, case: Case[object, object]) -> float:
        """From 0 to -1, linear in the buffer."""
        over = case.tokens - (self.target - self.buffer)
        return -min(max(over / self.buffer, 0.0), 1.0)
