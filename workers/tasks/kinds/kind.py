"""What a kind of task is: what it shows, what it asks for, and who is right about it. The default is one pair.

A kind is a subclass in a file of its own, and its words in `workers/tasks/prompts/`. The rest of self-play asks this
record, and names no kind.
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
"""Whether two texts are literals of one and the same value, under the rule of the run."""


class Kind:
    """A kind of task whose proposal is a program with one input. Stateless; one instance is registered."""

    name: ClassVar[str]
    """In profiles, metrics and stored data: short, and never changed."""
    asks: ClassVar[Literal["input", "output", "program"]]
    """The part of a task that its solver has to find."""
    english: ClassVar[Words | None] = None
    """Its words in the styles `azr` and `azr-chat`; None: these cannot ask it."""
    pocket: ClassVar[PocketWords | None] = None
    """Its words in the style of the pocket model."""
    plain: ClassVar[PlainWords | None] = None
    """Its words for a model that was never trained here, as suites ask it."""
    writes_program: ClassVar[bool] = True
    """False: its proposer is shown a program that another kind has found, and writes inputs for it."""
    many_pairs: ClassVar[bool] = False
    """True: a task has several inputs, and its prompt shows some of the pairs."""
    is_original: ClassVar[bool] = False
    """Whether the files of the original Absolute Zero hold it."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """What `why_unsound` says, in words."""

    def gold(self, entry: Entry) -> str:
        """The answer that the task was stored with."""
        return {"input": entry.inputs[0], "output": entry.outputs[0], "program": entry.program}[self.asks]

    def item(self, entry: Entry) -> Item:
        """What prompts know of the task."""
        return Triplet(entry.program, entry.inputs[0], entry.outputs[0], entry.step, entry.source)

    def seed(self, inputs: Sequence[str], message: str) -> tuple[Sequence[str], str]:
        """Inputs and message of the first task of a run, about the identity function: what it takes of these."""
        return inputs[:1], ""

    def why_unsound(self, program: str, inputs: Sequence[str], num_shown: int | None) -> str:
        """Why nobody could learn from such a task, in one word for counting; empty where one can.

        Raises `Rejected` for inputs that are no literals.
        """
        return ""

    # --- who is right --------------------------------------------------------------------------------------------

    @property
    def runs_answers(self) -> bool:
        """Whether who is right shows only when something of the answer is run."""
        return self.asks != "output"

    @property
    def answers_program(self) -> bool:
        """Whether the answer is a program, which is worth nothing once it fails where all pairs must hold."""
        return self.asks == "program"

    def is_right(self, entry: Entry, answer: str, same: Same) -> bool:
        """Of an answer that is judged by its text; called where `runs_answers` is False."""
        return same(answer, self.gold(entry))

    def calls(self, entry: Entry, answer: str, num_shown: int) -> list[tuple[str, str]]:
        """(program, arguments) of each call that decides; none: the answer is wrong. num_shown: pairs in the prompt."""
        try:
            return [(entry.program, canonical_arguments(answer))]
        except Rejected:
            return []

    def expected(self, entry: Entry, num_shown: int) -> Sequence[str]:
        """The value that each of `calls` has to give."""
        return entry.outputs
