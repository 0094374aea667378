"""A kind of task with one pair, in the marks on which the pocket model was pretrained. (pure)"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from workers.tasks.items import Item, Triplet
from workers.tasks.prompts.style import Form, Proposal, Words

STRING = re.compile(r"'[a-zA-Z]*'")
WORK = "<work>"


class PocketWords(Words, Protocol):
    """The pocket model's words for one kind of task."""

    @property
    def begins(self) -> str:
        """How an answer without work starts."""
        ...


@dataclass(frozen=True)
class OnePair:
    """`Words` of a kind whose proposer writes a program and one input.

    asked: the proposer's prompt, with placeholders for program and input. question: the solver's, with one for the
    output too. begins: how an answer without work starts.
    """

    asked: str
    question: str
    begins: str = "'"

    def propose(self, references: Sequence[Triplet], parts: Sequence[str], form: Form, *, is_seeding: bool) -> str:
        """Shows the first reference."""
        return self.asked.format(program=references[0].program, input=references[0].input)

    def solve(self, item: Item, form: Form) -> str:
        assert isinstance(item, Triplet)
        return self.question.format(program=item.program, input=item.input, output=item.output)

    def proposal(self, text: str, form: Form, *, is_seeding: bool) -> Proposal | None:
        """`program<in>'uvw'`."""
        program, mark, argument = text.partition("<in>")
        if not mark or not STRING.fullmatch(argument) or not is_program(program):
            return None
        return Proposal(program=program, inputs=(argument,))

    def render(self, answer: str) -> str:
        return answer

    def answer(self, text: str, form: Form) -> str | None:
        """The text after the last `=` of worked steps, else the whole text."""
        found = after_work(text, "=")
        return found if found is not None and STRING.fullmatch(found) else None


def after_work(text: str, end: str) -> str | None:
    """The text without worked steps; None if they do not end with the mark `end`."""
    if not text.startswith(WORK):
        return text
    _, mark, rest = text.rpartition(end)
    return rest if mark else None


def is_program(text: str) -> bool:
    """Whether the text parses as one function `f`."""
    if not text.startswith("def f("):
        return False
    try:
        return len(ast.parse(text).body) == 1
    except SyntaxError:
        return False
