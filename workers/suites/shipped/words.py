"""The second built-in model's held-out word problems as a suite: needs no data file, and works in any answer format.

Scores are listed by the number of operations: `ops1`, `ops2`, `ops3`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from profiles.suites import PROBLEM_STYLES
from workers.suites.source import Drawn

if TYPE_CHECKING:
    from workers.suites.suite import Suite


def word_problems_suite(name: str, count: int) -> Suite:
    """`count` problems of each number of operations, of one fixed draw for that count."""
    from workers.pocket.word_problems.corpus import held_out_stories
    from workers.rng import derive
    from workers.suites.question import Question, WordProblem
    from workers.suites.suite import Suite

    stories = [one.story for one in held_out_stories(count)]
    questions = [
        Question(
            f"{story.task}-{number}",
            "maths",
            WordProblem(story.text, Fraction(story.answer)),
            derive(0, 0, "words", number),
            stratum=story.task,
            listed=story.task,
        )
        for number, story in enumerate(stories)
    ]
    return Suite(name, questions)


SUITE = Drawn(
    about="arithmetic in a few sentences; right is the same number, exactly",
    tasks=("ops1", "ops2", "ops3"),
    workers=("azr", "grpo", "verl"),
    styles=PROBLEM_STYLES,
    draw=word_problems_suite,
)
