"""What a prompt style must offer, and what it asks of each kind of task: texts, and the way back from a completion.

A style knows no model and runs no program: whether a proposal is valid or an answer right is for others to judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from profiles.errors import ExitCode, LonghaulError
from workers.tasks.items import Item, Task, Triplet


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a proposer wrote: one input, or `num_inputs` of them where a task has many pairs."""

    program: str
    inputs: tuple[str, ...]
    """Source text of each argument list, for example `'uvw'`."""
    message: str = ""
    is_well_formed: bool = True
    """False: all parts are there, but not in the form that was asked for. The task may be stored, nobody is paid."""


@dataclass(frozen=True)
class Form:
    """What of a style is a choice; the knobs of [azr] with these names say more."""

    program_fence: str = "first"
    seed_parse: str = "whole_response"
    lenient_fallbacks: bool = False
    hide_input: bool = False
    seconds: float = 10.0
    """Time that a program may take, as it is told to the model."""
    num_inputs: int = 10
    """Inputs that a proposal must bring where a task has many pairs."""
    num_shown: int | None = None
    """How many of these pairs a solver sees; the others check its program. None: half of them."""


class Words(Protocol):
    """What a style says of one kind of task, without what is around it, and how it reads the completions."""

    def propose(self, references: Sequence[Triplet], parts: Sequence[str], form: Form, *, is_seeding: bool) -> str:
        """Asks for a new task."""
        ...

    def solve(self, item: Item, form: Form) -> str:
        """Asks for the hidden part of `item`."""
        ...

    def proposal(self, text: str, form: Form, *, is_seeding: bool) -> Proposal | None:
        """The proposal in a completion; None if a part is missing."""
        ...

    def render(self, answer: str) -> str:
        """How `answer` is written; the way back from `answer`."""
        ...

    def answer(self, text: str, form: Form) -> str | None:
        """The answer in a completion; None if there is none."""
        ...


class PromptStyle(Protocol):
    """One way of talking to a model: the text of prompts and the form of answers."""

    name: str
    form: Form
    stop: tuple[str, ...]
    """Texts that end a completion, themselves part of it."""
    min_references: int
    """Tasks that a proposer's prompt must show at least."""

    def words_of(self, task: Task) -> Words | None:
        """None: the style cannot ask this kind."""
        ...

    def propose(
        self, task: Task, references: Sequence[Triplet], parts: Sequence[str] = (), *, is_seeding: bool = False
    ) -> str:
        """Prompt that asks for a new task; where a kind writes no program, `references` is the one to write inputs for.

        parts: earlier programs that the new one has to build on, as g_0, g_1 ... is_seeding: for the first buffers.
        """
        ...

    def solve(self, task: Task, item: Item) -> str:
        """Prompt that asks for the hidden part of `item`."""
        ...

    def parse_proposal(self, task: Task, completion: str, *, is_seeding: bool = False) -> Proposal | None:
        """The proposal in a completion; None if a part is missing. The program is empty where the kind writes none."""
        ...

    def render_answer(self, task: Task, answer: str) -> str:
        """The completion that gives `answer` in the form that `solve` asks for; the way back from `parse_answer`."""
        ...

    def parse_answer(self, task: Task, completion: str) -> str | None:
        """Literal, argument list or program of a completion, as the kind asks for; None if there is none.

        Lenient where the form allows it: a task is as hard as it is, however its answer is wrapped.
        """
        ...

    def is_well_formed(self, task: Task, completion: str) -> bool:
        """Whether the answer has the form that was asked for. Never true where `parse_answer` finds none."""
        ...

    def is_worked(self, task: Task, completion: str) -> bool:
        """Whether the completion reasons before it answers."""
        ...

    def is_showable(self, text: str) -> bool:
        """Whether a text of the model may stand in a prompt of this style."""
        ...


def wordless(task: Task, style: str) -> NoReturn:
    """Raises LonghaulError (INPUT): the kind says nothing in this style."""
    raise LonghaulError(
        f"the prompt style {style} has no words for the kind of task {task!r}",
        kept="the run, as it is",
        next_command="give the kind words in this style (docs/extending.md), or take it out of azr.tasks",
        exit_code=ExitCode.INPUT,
    )
