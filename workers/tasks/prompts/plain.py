"""Tasks in a few plain sentences, for any model: the question, and how the answer is found. (pure)"""

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
    """What is said of one kind of task."""

    @property
    def mark(self) -> str:
        """Before an answer; what stands before it is work."""
        ...

    def ask(self, item: Item) -> str:
        """The question."""
        ...

    def answer(self, completion: str) -> str | None:
        """None where there is none."""
        ...


@dataclass(frozen=True)
class MarkedLine:
    """About one pair. The answer is the first marked line: a base model goes on to questions that it invents.

    question: with places for program, input and output. unwrap: from the text beside the mark to the answer.
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
    """About the first half of many pairs. The answer is the last fence with a program."""

    question: str
    mark: str = "```"

    def ask(self, item: Item) -> str:
        assert isinstance(item, HiddenProgram)
        pairs = list(zip(item.inputs, item.outputs, strict=True))[: len(item.inputs) // 2]
        return self.question.format(pairs="\n".join(f"f({given}) == {value}" for given, value in pairs))

    def answer(self, completion: str) -> str | None:
        written = _PROGRAM.findall(completion)
        return written[-1].strip("\n") if written else None
