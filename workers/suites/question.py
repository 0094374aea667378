"""What a suite asks, and the fixed subset for a smaller evaluation. (pure)"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from workers.problems.problem import Message, Problem
from workers.tasks.items import HiddenProgram, Triplet
from workers.verifiers.unit_tests import Tests, text_of

Kind = str
"""The name of a self-play kind of task, MATHS or CODE."""
MATHS = "maths"
"""Word problems."""
CODE = "code"
"""Programs to write, judged by tests."""


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A question in words.

    gold: the right answer as text, compared by the rules of GRPO's verifier; "" if it is the number `answer`.
    messages: the whole chat, if the question is the last of one.
    """

    text: str
    answer: Fraction
    gold: str = ""
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A program to write. start: the code that an answer completes, up to the head of the function `entry`; both may
    be empty."""

    text: str
    tests: Tests = ()
    start: str = ""
    entry: str = ""
    messages: tuple[Message, ...] = ()

    def program(self, answer: str) -> str:
        """What is tested: imports and helpers of `start` before a whole function, or `start` before the rest of it."""
        if not self.entry:
            return answer
        is_whole = re.search(rf"^(?:async )?def {self.entry}\b|^{self.entry}\s*=", answer, re.MULTILINE)
        before = self.start[: self.start.rindex(f"def {self.entry}")] if is_whole else self.start
        return f"{before}\n{answer}\n"


@dataclass(frozen=True, slots=True)
class Rewarded:
    """A row that the run's own reward judges. rule: identifies that reward."""

    problem: Problem
    rule: str

    @property
    def text(self) -> str:
        """Equal only where the same reward judges the same row."""
        row = self.problem
        return json.dumps([row.gold, row.columns, self.rule], sort_keys=True)


@dataclass(frozen=True, slots=True)
class Question:
    """One held-out problem."""

    question_id: str
    kind: Kind
    item: Triplet | HiddenProgram | WordProblem | CodeProblem
    seed: int
    """Seed of its samples' random streams: the same for every checkpoint and every batch."""
    stratum: str = ""
    """Group of similar questions; a subset takes its share of each."""
    listed: str = ""
    """The name under which its score is listed; empty: its kind."""
    rewarded: Rewarded | None = field(default=None, compare=False)
    """What judges it in place of a right answer; None: its item says what is right."""

    @property
    def task(self) -> str:
        return self.listed or self.kind

    @property
    def gold(self) -> str:
        """The right answer, or what decides on answers, as text."""
        if self.rewarded is not None:
            return self.rewarded.text
        item = self.item
        if isinstance(item, WordProblem):
            return item.gold or str(item.answer)
        if isinstance(item, CodeProblem):
            return text_of(item.tests)
        return repr(item.outputs) if isinstance(item, HiddenProgram) else item.output

    @property
    def content_name(self) -> str:
        """Equal only for equal problems, whatever their number in a draw. Matches answers of two validations."""
        item = self.item
        if isinstance(item, WordProblem | CodeProblem):
            asked, given = item.text, repr(item.messages) if item.messages else ""
        else:
            asked, given = item.program, repr(item.inputs if isinstance(item, HiddenProgram) else item.input)
        return hashlib.sha256(f"{self.kind}\0{asked}\0{given}\0{self.gold}".encode()).hexdigest()[:16]


def subset(questions: Sequence[Question], count: int) -> list[Question]:
    """`count` of them (all, if there are no more), in their order: each stratum's share, chosen by a hash of the ids.

    The same ids give the same subset, in any order and on any machine. Shares are rounded by largest remainder, so no
    stratum is off by a whole question.
    """
    if count >= len(questions):
        return list(questions)
    strata: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        strata[question.stratum].append(question)
    shares = {name: len(group) * count / len(questions) for name, group in strata.items()}
    taken = {name: int(share) for name, share in shares.items()}
    by_rest = sorted(shares, key=lambda name: (taken[name] - shares[name], name))
    for name in by_rest[: count - sum(taken.values())]:
        taken[name] += 1
    chosen = {
        question.question_id
        for name, group in strata.items()
        for question in sorted(group, key=lambda question: _rank(question.question_id))[: taken[name]]
    }
    return [question for question in questions if question.question_id in chosen]


def _rank(question_id: str) -> str:
    return hashlib.sha256(question_id.encode()).hexdigest()
