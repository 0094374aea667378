"""Decides what happens to the shards of an evaluation: which have ended, and which are asked again. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.launchers.job_end import Cause, End, Left, Seen, has_ended, meaning
from profiles.errors import ExitCode
from workers.line_contract import Done, Error

MOST_SHARDS = 8
"""Shards of an evaluation if the user asks for no number. Each loads the model once."""
NO_USE = frozenset(
    {
        ExitCode.USAGE,
        ExitCode.SPEC,
        ExitCode.VERSION,
        ExitCode.INPUT,
        ExitCode.CUDA_OOM,
        ExitCode.DISK,
        ExitCode.PERMISSION,
        ExitCode.MISMATCH,
    }
)
"""Failures that would come again."""


@dataclass(frozen=True)
class Signs:
    """What is known of one shard. said: how its worker says that it ended. exit_code: that of its job script."""

    said: Done | Error | None = None
    is_claimed: bool = True
    exit_code: int | None = None
    seen: Seen | None = None
    """The scheduler's view; None: it has not been asked, or does not answer."""
    is_silent: bool = False
    """The scheduler does not answer at all."""


def end_of(signs: Signs) -> End | None:
    """How the shard ended; None: it has not, or nobody knows. Files outrank the scheduler."""
    match signs.said:
        case Done():
            return End(ExitCode.OK)
        case Error(what=what, exit_code=code):
            return End(code, text=what)
    left = Left(is_claimed=signs.is_claimed)
    if signs.seen is not None and has_ended(signs.seen):
        return meaning(left, signs.seen)
    if signs.is_silent and signs.exit_code is not None:
        return meaning(left, Seen("FAILED", signs.exit_code))
    return None


def fruitless(before: Mapping[int, int], had: Mapping[int, int], left: Sequence[int]) -> dict[int, int]:
    """How often in a row each unfinished shard has ended without another answer.

    before: the last result of this function. had: shard -> questions that it had left before its array ran.
    left: questions that each shard has left now.
    """
    return {
        number: before.get(number, 0) + 1 if left[number] >= count else 0
        for number, count in had.items()
        if left[number]
    }


def hopeless(ends: Mapping[int, End], tries: Mapping[int, int], at_most: int) -> int | None:
    """The first shard that is not worth another try; None: repeat all that have questions left.

    A shard that gets on is repeated as often as that takes. tries: as from `fruitless`. at_most: its limit.
    """
    for number, end in sorted(ends.items()):
        if number not in tries:
            continue
        if end.cause in (Cause.CANCELLED, Cause.HOST_OOM) or end.exit_code in NO_USE or tries[number] >= at_most:
            return number
    return None


def unfinished(left: Sequence[int]) -> dict[int, int]:
    """Shard -> questions that it has left, of those that have any."""
    return {number: count for number, count in enumerate(left) if count}
