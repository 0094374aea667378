"""Training courses: corpus, vocabulary and evaluation problems of each shipped pocket model, and of both together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from workers.pocket import corpus, evaluation
from workers.pocket.example import Example
from workers.pocket.gate import GateProblem
from workers.pocket.shards import Draw
from workers.pocket.tokenizer import PROGRAMS
from workers.pocket.vocabulary import Vocabulary
from workers.pocket.word_problems.corpus import WordRecipe, held_out_stories
from workers.pocket.word_problems.corpus import make_example as make_story
from workers.pocket.word_problems.speech import WORD_PROBLEMS

INDUCTION_FIRST = (1.0, 1.0, 2.5, 0.15, 0.15, 0.15)
"""Cell weights of the course of both languages, which lasts minutes: induction takes longest to learn."""


@dataclass(frozen=True)
class BothRecipe:
    """Composition of the corpus of both languages. words_share: share of word problems."""

    programs: corpus.Recipe
    word_problems: WordRecipe
    worked_share: float
    words_share: float = 0.2


@dataclass(frozen=True)
class Course:
    """One model's course.

    recipe: composition of the corpus, recorded in gate.json. problems(num_each, seed): problems held out of the corpus.
    shown_share: target share of worked answers at temperature 1. direct_weight: loss weight of direct answers after
    their first token.
    """

    vocabulary: Vocabulary
    recipe: corpus.Recipe | WordRecipe | BothRecipe
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


def both(worked_share: float) -> Course:
    """Both languages in one model, which self-play and GRPO then train: `benchmarks gpu_learning`."""
    little_language = corpus.Recipe(cell_weights=INDUCTION_FIRST, worked_share=worked_share)
    recipe = BothRecipe(little_language, WordRecipe(worked_share=worked_share), worked_share)
    vocabulary = Vocabulary(tuple(dict.fromkeys((*PROGRAMS.tokens, *WORD_PROBLEMS.tokens))))
    return Course(vocabulary, recipe, partial(draw_of_both, recipe=recipe), problems_of_both, shown_share=0.13)


def draw_of_both(rng: Random, recipe: BothRecipe) -> Example:
    """A random sequence of either language."""
    if rng.random() < recipe.words_share:
        return make_story(rng, recipe.word_problems)
    return corpus.make_example(rng, recipe.programs)


def problems_of_both(*args: int, **options: int) -> Sequence[GateProblem]:
    return [*evaluation.held_out_problems(*args, **options), *held_out_stories(*args, **options)]


COURSES: dict[str, Callable[[float], Course]] = {"programs": programs, "word_problems": word_problems, "both": both}
