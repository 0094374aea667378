"""Training sequences of word problems, answered directly or with worked steps; and the held-out problems."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from workers.pocket.example import Example
from workers.pocket.word_problems.speech import BOX, THINK, direct, is_worked, worked
from workers.pocket.word_problems.story import MOST_STEPS, NAMES_OF_STEPS, Story, draw_of_fold
from workers.verifiers.verify import judge

EVALUATION_SEED = 20_251_122


@dataclass(frozen=True)
class WordRecipe:
    """Composition of a corpus."""

    step_weights: tuple[float, ...] = (2, 3, 4)
    """Weight of problems of 1, 2 and 3 operations."""
    worked_share: float = 0.8
    """Share of worked sequences. How often the model works is set by the style weights instead."""


def make_example(rng: Random, recipe: WordRecipe) -> Example:
    """One random sequence outside the held-out fold."""
    num_steps = rng.choices(range(1, MOST_STEPS + 1), recipe.step_weights)[0]
    story = draw_of_fold(rng, num_steps, held_out=False)
    is_work = rng.random() < recipe.worked_share
    return Example(story.task, story.prompt, worked(story) if is_work else direct(story), is_work)


@dataclass(frozen=True, slots=True)
class HeldOutStory:
    """A held-out problem for the gate, judged by the same verifier as in every GRPO run."""

    story: Story

    @property
    def task(self) -> str:
        return self.story.task

    @property
    def prompt(self) -> str:
        return self.story.prompt

    @property
    def worked_start(self) -> str:
        return THINK

    @property
    def direct_start(self) -> str:
        return BOX

    def is_right(self, completion: str) -> bool:
        return judge(str(self.story.answer), completion).correct

    def is_worked(self, completion: str) -> bool:
        return is_worked(completion)

    def is_answered(self, completion: str) -> bool:
        return judge(str(self.story.answer), completion).extracted is not None


def held_out_stories(num_each: int = 300, seed: int = EVALUATION_SEED) -> list[HeldOutStory]:
    """`num_each` problems each of one, two and three operations, in this order, all with distinct texts."""
    rng = Random(seed)
    found: dict[str, Story] = {}
    for number in range(1, len(NAMES_OF_STEPS) + 1):
        while len(found) < number * num_each:
            story = draw_of_fold(rng, number, held_out=True)
            found.setdefault(story.text, story)
    return [HeldOutStory(story) for story in found.values()]
