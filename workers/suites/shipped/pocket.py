"""The built-in model's held-out problems as a suite: needs no data file, and works in any style that asks about
programs.

A run in the pocket style holds out the whole fold on which the model was never pretrained; all of the suite's problems
belong to this fold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.suites import PROGRAM_STYLES
from profiles.task_kinds import NAMES
from workers.suites.source import Drawn

if TYPE_CHECKING:
    from workers.suites.suite import Suite


def draw(name: str, count: int) -> Suite:
    """`count` problems of each task: the start of one fixed sequence."""
    from workers.suites.pocket import PocketSuite

    return PocketSuite(name, count)


def is_of_the_fold(program: str) -> bool:
    """Whether the model was never pretrained on the program, given in its normal text."""
    from workers.pocket.language import is_held_out

    return is_held_out(program)


SUITE = Drawn(
    about="all three kinds of task of self-play, on strings; right is what running programs says",
    tasks=NAMES,
    workers=("azr",),
    styles=("pocket", *PROGRAM_STYLES),
    folds={"pocket": is_of_the_fold},
    draw=draw,
)
