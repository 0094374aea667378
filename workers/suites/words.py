"""The held-out word problems of the second built-in model as a suite: no data file, and any answer format may ask them.

Scores are listed by the number of operations: `ops1`, `ops2`, `ops3`.
"""

from __future__ import annotations

from fractions import Fraction

from workers.pocket.words.corpus import held_out_stories
from workers.rng import derive
from workers.suites.question import Question, WordProblem
from workers.suites.suite import Suite

NUM_EACH = 300
"""Problems of each number of operations where no number is asked for."""


def words_suite(count: int = 0) -> Suite:
    """`count` problems of each number of operations, of one fixed draw for that count."""
    stories = [one.story for one in held_out_stories(count or NUM_EACH)]
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
    return Suite("words", questions)
