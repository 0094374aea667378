"""What a prompt style must offer, and what it needs from each kind of task: prompts, and parsing of completions.

A style knows no model and runs no program. Others judge whether a proposal is valid or an answer right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from profiles.errors import ExitCode, LonghaulError
from workers.tasks.items import Item, Task, Triplet


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposer's output: one input, or `num_inputs` of them for a task with many pairs."""

    program: str
    inputs: tuple[str, ...]
    """Source text of each argument list, for example `'uvw'`."""
    message: str = ""
    is_well_formed: bool = True
    """False: complete, but not in the requested form. The task may be stored, but earns no reward."""


@dataclass(frozen=True)
class Form:
    """Configurable parts of a style; the [azr] knobs of these names explain them."""

    program_fence: str = "first"
    seed_parse: str = "whole_response"
    lenient_fallbacks: bool = False
    hide_input: bool = False
    seconds: float = 10.0
    """Time limit of a program, as stated in the prompt."""
    num_inputs: int = 10
    """Inputs that a proposal must have if the task has many pairs."""
    num_shown: int | None = None
    """How many of these pairs a solver sees; the others test its program. None: half of them."""


class Words(Protocol):
    """A style's words for one kind of task, without the frame around them, and how completions are read."""

    def propose(self, references: Sequence[Triplet], parts: Sequence[str], form: Form, *, is_seeding: bool) -> str:
        """The proposer's request for a new task."""
        ...

    def solve(self, item: Item, form: Form) -> str:
        """The solver's request for the hidden part of `item`."""
        ...

    def proposal(self, text: str, form: Form, *, is_seeding: bool) -> Proposal | None:
        """The proposal in a completion; None if a part is missing."""
        ...

    def render(self, answer: str) -> str:
        """Writes `answer` out; the inverse of the method `answer`."""
        ...

    def answer(self, text: str, form: Form) -> str | None:
        """The answer in a completion; None if there is none."""
        ...


class PromptStyle(Protocol):
    """One way to address a model: the text of prompts and the form of answers."""

    name: str
    form: Form
    stop: tuple[str, ...]
    """Texts that end a completion, and are part of it."""
    min_references: int
    """Fewest tasks that a proposer's prompt must show."""

    def words_of(self, task: Task) -> Words | None:
        """None if the style cannot ask this kind."""
        ...

    def propose(
        self, task: Task, references: Sequence[Triplet], parts: Sequence[str] = (), *, is_seeding: bool = False
    ) -> str:
        """Prompt that asks for a new task. If the kind writes no program, `references` is the one to write inputs for.

        parts: earlier programs that the new one has to build on, as g_0, g_1 ... is_seeding: for the first buffers.
        """
        ...

    def solve(self, task: Task, item: Item) -> str:
        """Prompt that asks for the hidden part of `item`."""
        ...

    def parse_proposal(self, task: Task, completion: str, *, is_seeding: bool = False) -> Proposal | None:
        """The proposal in a completion; None if a part is missing. The program is empty if the kind writes none."""
        ...

    def render_answer(self, task: Task, answer: str) -> str:
        """A completion with `answer` in the form that `solve` asks for; the inverse of `parse_answer`."""
        ...

    def parse_answer(self, task: Task, completion: str) -> str | None:
        """The literal, argument list or program in a completion, as the kind asks for; None if there is none.

        Lenient where the form allows: the wrapping of an answer should not make a task harder.
        """
        ...

    def is_well_formed(self, task: Task, completion: str) -> bool:
        """Whether the answer has the requested form. Never true if `parse_answer` returns None."""
        ...

    def is_worked(self, task: Task, completion: str) -> bool:
        """Whether the completion reasons before it answers."""
        ...

    def is_showable(self, text: str) -> bool:
        """Whether a text that the model wrote may appear in a prompt of this style."""
        ...


def wordless(task: Task, style: str) -> NoReturn:
    """Raises LonghaulError (INPUT): the kind has no words in this style."""
    raise LonghaulError(
        f"the prompt style {style} has no words for the kind of task {task!r}",
        kept="the run, as it is",
        next_command="give the kind words in this style (docs/extending.md), or take it out of azr.tasks",
        exit_code=ExitCode.INPUT,
    )
