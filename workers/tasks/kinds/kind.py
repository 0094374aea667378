"""A kind of task: what it shows, what it asks for, and which answers are right. The default has one pair.

A kind is a subclass in a file of its own; its words are in `workers/tasks/prompts/`. The rest of self-play asks this
record and names no kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

from workers.sandbox.literal import Rejected, canonical_arguments
from workers.tasks.entry import Entry
from workers.tasks.items import Item, Triplet
from workers.tasks.prompts.marks import PocketWords
from workers.tasks.prompts.plain import PlainWords
from workers.tasks.prompts.style import Words

Same = Callable[[str, str], bool]
"""Whether two texts are literals of the same value, under the run's rule."""


class Kind:
    """A kind of task whose proposal is a program with one input. Stateless; one instance is registered."""

    name: ClassVar[str]
    """Used in profiles, metrics and stored data: keep it short, and never change it."""
    asks: ClassVar[Literal["input", "output", "program"]]
    """The part of a task that its solver has to find."""
    english: ClassVar[Words | None] = None
    """Its words in the styles `azr` and `azr-chat`; None if these cannot ask it."""
    pocket: ClassVar[PocketWords | None] = None
    """Its words in the style of the pocket model."""
    plain: ClassVar[PlainWords | None] = None
    """Its words for a model that was not trained here; suites use them."""
    writes_program: ClassVar[bool] = True
    """False: the proposer writes inputs for a program that it is shown, taken from another kind's buffer."""
    many_pairs: ClassVar[bool] = False
    """True: a task has several inputs, and its prompt shows some of the pairs."""
    is_original: ClassVar[bool] = False
    """Whether data files of the original Absolute Zero contain this kind."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """Explains each reason that `why_unsound` returns."""

    def gold(self, entry: Entry) -> str:
        """The answer stored with the task."""
        return {"input": entry.inputs[0], "output": entry.outputs[0], "program": entry.program}[self.asks]

    def item(self, entry: Entry) -> Item:
        """What prompts need to know of the task."""
        return Triplet(entry.program, entry.inputs[0], entry.outputs[0], entry.step, entry.source)

    def seed(self, inputs: Sequence[str], message: str) -> tuple[Sequence[str], str]:
        """Inputs and message of a run's first task, which is about the identity function: what this kind uses of
        them."""
        return inputs[:1], ""

    def why_unsound(self, program: str, inputs: Sequence[str], num_shown: int | None) -> str:
        """Why nothing can be learnt from such a task, as one word for counting; empty if something can.

        Raises `Rejected` for inputs that are not literals.
        """
        return ""

    # --- who is right --------------------------------------------------------------------------------------------

    @property
    def runs_answers(self) -> bool:
        """Whether judging an answer requires running it."""
        return self.asks != "output"

    @property
    def answers_program(self) -> bool:
        """Whether the answer is a program; where all pairs must hold, one failure makes it wrong."""
        return self.asks == "program"

    def is_right(self, entry: Entry, answer: str, same: Same) -> bool:
        """Judge an answer by its text; called if `runs_answers` is False."""
        return same(answer, self.gold(entry))

    def calls(self, entry: Entry, answer: str, num_shown: int) -> list[tuple[str, str]]:
        """(program, arguments) of each call that decides; empty if the answer is wrong. num_shown: pairs in the
        prompt."""
        try:
            return [(entry.program, canonical_arguments(answer))]
        except Rejected:
            return []

    def expected(self, entry: Entry, num_shown: int) -> Sequence[str]:
        """The value that each of `calls` must return."""
        return entry.outputs
