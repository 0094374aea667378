"""How word problems are written and answered: the vocabulary, and completions with or without work.

    <think>3*4=12
    12-5=7</think>\\boxed{7}        worked
    \\boxed{7}                      at once

Which is right is for `workers.verifiers.verify` to say, here as in every GRPO run.
"""

from __future__ import annotations

import re

from workers.pocket.vocabulary import EOS, PAD, UNKNOWN, Vocabulary
from workers.pocket.words import story
from workers.pocket.words.story import Story

THINK, THOUGHT, BOX = "<think>", "</think>", "\\boxed{"
MARKS = (PAD, EOS, UNKNOWN, THINK, THOUGHT, BOX, "}")
SIGNS = ("\n", " ", ".", "?", "+", "-", "*", "/", "=", *"0123456789")
MAX_PROMPT_TOKENS = 64
MAX_COMPLETION_TOKENS = 40
"""Tokens of the longest worked answer, and some."""
_WORD = re.compile(r" ?[A-Za-z]+")


def all_words() -> list[str]:
    """Every word of every template, alphabetically, and the names that begin a text without the space before them."""
    sentences = (*story.HAS, *story.PRODUCT, *story.MORE, *story.FEWER, *story.NOW, *story.TIMES, *story.SHARE)
    plain = [re.sub(r"\{\w+\}", "", sentence) for sentence in sentences]
    found = {word for sentence in plain for word in _WORD.findall(f" {sentence}")}
    names = (*story.HE, *story.SHE)
    found |= {f" {word}" for word in (*names, *story.THINGS, *story.BOXES, "He", "She", "him", "her")}
    return sorted(found | set(names))


WORDS = Vocabulary((*MARKS, *SIGNS, *all_words()))


def worked(problem: Story) -> str:
    """All steps, one a line, and the answer in a box."""
    steps = "\n".join(map(str, problem.steps))
    return f"{THINK}{steps}{THOUGHT}{direct(problem)}"


def direct(problem: Story) -> str:
    """The answer alone."""
    return f"{BOX}{problem.answer}}}"


def is_worked(completion: str) -> bool:
    return completion.startswith(THINK)
