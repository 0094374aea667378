"""Training courses: corpus, vocabulary and evaluation problems of each shipped pocket model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from workers.pocket import corpus, evaluation
from workers.pocket.gate import GateProblem
from workers.pocket.shards import Draw
from workers.pocket.tokenizer import PROGRAMS
from workers.pocket.vocabulary import Vocabulary
from workers.pocket.word_problems.corpus import WordRecipe, held_out_stories
from workers.pocket.word_problems.corpus import make_example as make_story
from workers.pocket.word_problems.speech import WORD_PROBLEMS


@dataclass(frozen=True)
class Course:
    """One model's course.

    recipe: composition of the corpus, recorded in gate.json. problems(num_each, seed): problems held out of the corpus.
    shown_share: target share of worked answers at temperature 1. direct_weight: loss weight of direct answers after
    their first token.
    """

    vocabulary: Vocabulary
    recipe: corpus.Recipe | WordRecipe
    draw: Draw
    problems: Callable[..., Sequence[GateProblem]]
    shown_share: float = 0.11
    direct_weight: float = 0.05


def programs(worked_share: float) -> Course:
    """The little language: solving and proposing deduction, abduction and induction."""
    recipe = corpus.Recipe(worked_share=worked_share)
    return Course(PROGRAMS, recipe, partial(corpus.make_example, recipe=recipe), evaluation.held_out_problems)


def word_problems(worked_share: float) -> Course:
    """Arithmetic in a few sentences."""
    recipe = WordRecipe(worked_share=worked_share)
    draw = partial(make_story, recipe=recipe)
    return Course(WORD_PROBLEMS, recipe, draw, held_out_stories, shown_share=0.15, direct_weight=0.5)


COURSES: dict[str, Callable[[float], Course]] = {"programs": programs, "word_problems": word_problems}
