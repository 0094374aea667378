"""A game: guess a hidden number from 1 to 9. After each wrong guess it says whether there are more or fewer.

What it says is in the vocabulary of the built-in words model, so that it can play: `+` for more, `-` for fewer. A guess
is the last number of a reply, in a box if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workers.environments.protocol import Message
from workers.pocket.word_problems.story import HE, SHE, THINGS

MOST = 9


class Guess:
    """reward: 1 for the right number; 0 for a reply without a number, which ends the game.

    more, fewer: what it answers to a guess that is too low or too high. question: with {thing} and {name}.
    """

    def __init__(self, more: str = "+", fewer: str = "-", question: str = "{name} has ? {thing}.\n") -> None:
        self.more, self.fewer, self.question = more, fewer, question

    @staticmethod
    def rows() -> Iterator[dict[str, Any]]:
        """Every number with every name and thing; the number is in no prompt."""
        for name in (*HE, *SHE):
            for thing in THINGS:
                for number in range(1, MOST + 1):
                    yield {"name": name, "thing": thing, "number": number}

    def reset(self, row: dict[str, Any]) -> list[Message]:
        self.number = int(row["number"])
        text = self.question.format(thing=row.get("thing", "apples"), name=row.get("name", "Ann"))
        return [{"role": "user", "content": text}]

    def step(self, messages: list[Message], reply: str) -> tuple[list[Message], float, bool]:
        found = re.findall(r"\\boxed\{(\d{1,4})\}", reply) or re.findall(r"\b(\d{1,4})\b", reply)
        if not found:
            return [], 0.0, True
        guess = int(found[-1])
        if guess == self.number:
            return [], 1.0, True
        return [{"role": "user", "content": self.more if guess < self.number else self.fewer}], 0.0, False
