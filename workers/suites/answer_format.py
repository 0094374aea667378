"""How a model is asked, and how its answer is found: one way for every kind of question, whatever the suite.

`StyleFormat` asks as self-play does, so that a run is scored in the form that it was trained in. `PlainFormat` asks in
a few plain sentences, for any model. Neither decides who is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from workers.suites.question import MATHS, Kind, WordProblem
from workers.tasks.items import HiddenProgram, Triplet
from workers.tasks.kinds import registry
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.prompts.style import PromptStyle
from workers.verifiers.answers import after_mark, extract

Item = Triplet | HiddenProgram | WordProblem


class AnswerFormat(Protocol):
    """From a question to a prompt, and from a completion back to the answer."""

    name: str
    stop: tuple[str, ...]
    """Texts that end a completion."""
    kinds: frozenset[Kind]
    """What it has words for."""

    def ask(self, kind: Kind, item: Item) -> str:
        """The prompt."""
        ...

    def answer(self, kind: Kind, completion: str) -> str | None:
        """Literal, argument list, program or number of a completion, as text; None if it is malformed."""
        ...

    def is_worked(self, kind: Kind, completion: str) -> bool:
        """Whether the completion reasons before it answers."""
        ...


class StyleFormat:
    """The solver's prompts of a style. An answer without the form that was asked for counts as none."""

    def __init__(self, style: PromptStyle) -> None:
        self._style = style
        self.name, self.stop = style.name, style.stop
        self.kinds: frozenset[Kind] = frozenset(name for name in registry.names() if style.words_of(name))
        if isinstance(style, AzrStyle):
            self.kinds |= {MATHS}

    def ask(self, kind: Kind, item: Item) -> str:
        if isinstance(item, WordProblem):
            assert isinstance(self._style, AzrStyle)
            return self._style.ask(f"{item.text}\n\nThe answer is a number: give it alone, without words.")
        return self._style.solve(kind, item)

    def answer(self, kind: Kind, completion: str) -> str | None:
        if kind == MATHS:
            assert isinstance(self._style, AzrStyle)
            said = self._style.said(completion)
            return None if said is None else after_mark(said, NUMBER_MARK) or said
        return self._style.parse_answer(kind, completion) if self._style.is_well_formed(kind, completion) else None

    def is_worked(self, kind: Kind, completion: str) -> bool:
        return self._style.is_worked(kind, completion)


class VerbatimFormat:
    """Asks word problems as they stand, on a line of their own, and finds the answer as the verifier of GRPO does.

    marks: special tokens of the model; they are no part of an answer.
    """

    name = "verbatim"
    stop: tuple[str, ...] = ()
    kinds: frozenset[Kind] = frozenset({MATHS})

    def __init__(self, marks: Sequence[str] = ()) -> None:
        self._marks = tuple(marks)

    def ask(self, kind: Kind, item: Item) -> str:
        assert isinstance(item, WordProblem)
        return f"{item.text}\n"

    def answer(self, kind: Kind, completion: str) -> str | None:
        for mark in self._marks:
            completion = completion.replace(mark, "")
        return extract(self.whole(completion)).text

    def whole(self, completion: str) -> str:
        """The completion with what the prompt has begun of it."""
        return completion

    def is_worked(self, kind: Kind, completion: str) -> bool:
        """Whether there are thoughts before the answer."""
        return "<think>" in completion or "</think>" in completion


BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
"""The words that the published reasoning models of R1's family were trained with."""


class BoxedFormat(VerbatimFormat):
    """Asks word problems for an answer in a box, in the model's chat template where there is one.

    wrap: from the words to the whole prompt.
    """

    def __init__(self, name: str, wrap: Callable[[str], str], marks: Sequence[str] = ()) -> None:
        super().__init__(marks)
        self.name, self._wrap = name, wrap
        self._begun = "<think>" if wrap("").rstrip().endswith("<think>") else ""

    def ask(self, kind: Kind, item: Item) -> str:
        assert isinstance(item, WordProblem)
        return self._wrap(f"{item.text}\n{BOXED}")

    def whole(self, completion: str) -> str:
        """With the thoughts that the template opened: where they do not end, what stands in them is no answer."""
        return self._begun + completion


NUMBER_MARK = "####"
_MATHS = (
    "{text}\n\nThink step by step. Then end with one line that begins with `" + NUMBER_MARK + "`, followed by "
    "the answer as a number and nothing else."
)


class PlainFormat:
    """A few sentences, in the model's chat template where there is one.

    wrap: from these to the whole prompt. marks: special tokens of the model; they are no part of an answer.
    """

    stop: tuple[str, ...] = ()

    def __init__(
        self,
        name: str = "plain",
        wrap: Callable[[str], str] = lambda text: f"{text}\n\nSolution:\n",
        marks: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._wrap, self._marks = wrap, tuple(marks)
        self._words = {kind.name: kind.plain for kind in registry.known() if kind.plain}
        self.kinds: frozenset[Kind] = frozenset({MATHS, *self._words})

    def ask(self, kind: Kind, item: Item) -> str:
        if isinstance(item, WordProblem):
            return self._wrap(_MATHS.format(text=item.text))
        return self._wrap(self._words[kind].ask(item))

    def answer(self, kind: Kind, completion: str) -> str | None:
        """What the words of the kind find; of a word problem what follows the first mark."""
        for mark in self._marks:
            completion = completion.replace(mark, "")
        if kind == MATHS:
            return after_mark(completion, NUMBER_MARK)
        return self._words[kind].answer(completion)

    def is_worked(self, kind: Kind, completion: str) -> bool:
        """Whether there are words before the answer."""
        mark = NUMBER_MARK if kind == MATHS else self._words[kind].mark
        return len(completion.partition(mark)[0].split()) > 3
