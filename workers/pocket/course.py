"""What a pocket model is taught and held to: one course for each model that ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from workers.pocket import corpus, evaluation
from workers.pocket.gate import GateProblem
from workers.pocket.shards import Draw
from workers.pocket.tokenizer import PROGRAMS
from workers.pocket.vocabulary import Vocabulary
from workers.pocket.words.corpus import WordRecipe, held_out_stories
from workers.pocket.words.corpus import make_example as make_story
from workers.pocket.words.speech import WORDS


@dataclass(frozen=True)
class Course:
    """`recipe`: what the corpus is made of, which gate.json keeps. `problems(num_each, seed)`: held out of it.

    `shown_share`: how often the model shall work at temperature 1. `direct_weight`: loss weight of direct answers after
    their first token.
    """

    vocabulary: Vocabulary
    recipe: corpus.Recipe | WordRecipe
    draw: Draw
    problems: Callable[..., Sequence[GateProblem]]
    shown_share: float = 0.11
    direct_weight: float = 0.05


def programs(worked_share: float) -> Course:
    """The little language: deduction, abduction, induction, and proposing them."""
    recipe = corpus.Recipe(worked_share=worked_share)
    return Course(PROGRAMS, recipe, partial(corpus.make_example, recipe=recipe), evaluation.held_out_problems)


def words(worked_share: float) -> Course:
    """Arithmetic in words."""
    recipe = WordRecipe(worked_share=worked_share)
    draw = partial(make_story, recipe=recipe)
    return Course(WORDS, recipe, draw, held_out_stories, shown_share=0.15, direct_weight=0.5)


COURSES: dict[str, Callable[[float], Course]] = {"programs": programs, "words": words}
