"""Tasks in a few plain sentences, for any model: the question, and how to find the answer. (pure)"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from workers.tasks.items import HiddenProgram, Item, Triplet

MARK = "Answer:"
_MARKED = re.compile(rf"^[ \t>*_#]*{MARK}[ \t*_]*(.*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_PROGRAM = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)```", re.DOTALL)

ENDING = f"Think step by step. Then end with one line that begins with `{MARK}`, followed by {{what}} alone."


class PlainWords(Protocol):
    """The plain words for one kind of task."""

    @property
    def mark(self) -> str:
        """The mark before an answer. Text before it is work."""
        ...

    def ask(self, item: Item) -> str:
        """The question."""
        ...

    def answer(self, completion: str) -> str | None:
        """The answer, or None."""
        ...


@dataclass(frozen=True)
class MarkedLine:
    """For tasks with one pair. The answer is on the first marked line: a base model goes on to invent more questions.

    question: with placeholders for program, input and output. unwrap: turns the text beside the mark into the answer.
    """

    question: str
    unwrap: Callable[[str], str] = str
    mark: str = MARK

    def ask(self, item: Item) -> str:
        assert isinstance(item, Triplet)
        return self.question.format(program=item.program, input=item.input, output=item.output)

    def answer(self, completion: str) -> str | None:
        found = _MARKED.search(completion)
        return self.unwrap(found[1].rstrip("*").strip("`").strip()) or None if found else None


@dataclass(frozen=True)
class LastFence:
    """For tasks with many pairs; shows the first half. The answer is the last fence with a program."""

    question: str
    mark: str = "```"

    def ask(self, item: Item) -> str:
        assert isinstance(item, HiddenProgram)
        pairs = list(zip(item.inputs, item.outputs, strict=True))[: len(item.inputs) // 2]
        return self.question.format(pairs="\n".join(f"f({given}) == {value}" for given, value in pairs))

    def answer(self, completion: str) -> str | None:
        written = _PROGRAM.findall(completion)
        return written[-1].strip("\n") if written else None
