"""Text format of word problems: the vocabulary, and worked or direct completions.

    <think>3*4=12
    12-5=7</think>\\boxed{7}        worked
    \\boxed{7}                      direct

`workers.verifiers.verify` judges answers, here as in every GRPO run.
"""

from __future__ import annotations

import re

from workers.pocket.vocabulary import EOS, PAD, UNKNOWN, Vocabulary
from workers.pocket.word_problems import story
from workers.pocket.word_problems.story import Story

THINK, THOUGHT, BOX = "<think>", "</think>", "\\boxed{"
MARKS = (PAD, EOS, UNKNOWN, THINK, THOUGHT, BOX, "}")
SIGNS = ("\n", " ", ".", "?", "+", "-", "*", "/", "=", *"0123456789")
MAX_PROMPT_TOKENS = 64
MAX_COMPLETION_TOKENS = 40
"""Tokens of the longest worked answer, with some slack."""
_WORD = re.compile(r" ?[A-Za-z]+")


def all_words() -> list[str]:
    """All words of all templates, sorted; names also occur without a leading space, at the start of a text."""
    sentences = (*story.HAS, *story.PRODUCT, *story.MORE, *story.FEWER, *story.NOW, *story.TIMES, *story.SHARE)
    plain = [re.sub(r"\{\w+\}", "", sentence) for sentence in sentences]
    found = {word for sentence in plain for word in _WORD.findall(f" {sentence}")}
    names = (*story.HE, *story.SHE)
    found |= {f" {word}" for word in (*names, *story.THINGS, *story.BOXES, "He", "She", "him", "her")}
    return sorted(found | set(names))


WORD_PROBLEMS = Vocabulary((*MARKS, *SIGNS, *all_words()))


def worked(problem: Story) -> str:
    """Worked completion: all steps, one per line, then the boxed answer."""
    steps = "\n".join(map(str, problem.steps))
    return f"{THINK}{steps}{THOUGHT}{direct(problem)}"


def direct(problem: Story) -> str:
    """Direct completion: the boxed answer alone."""
    return f"{BOX}{problem.answer}}}"


def is_worked(completion: str) -> bool:
    return completion.startswith(THINK)
