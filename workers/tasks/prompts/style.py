"""What a prompt style must offer: text for the six cells, and the way back from a completion to its parts.

A style knows no model and runs no program: whether a proposal is valid or an answer right is for others to judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from workers.tasks.kinds import Problem, Task, Triplet


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a proposer wrote: one input for deduction and abduction, `num_inputs` of them for induction."""

    program: str
    inputs: tuple[str, ...]
    """Source text of each argument list, for example `'uvw'`."""
    message: str = ""
    is_well_formed: bool = True
    """False: all parts are there, but not in the form that was asked for. The task may be stored, nobody is paid."""


class PromptStyle(Protocol):
    """One way of talking to a model: the text of prompts and the form of answers."""

    name: str
    num_inputs: int
    """Inputs that an induction proposal must bring."""
    stop: tuple[str, ...]
    """Texts that end a completion, themselves part of it."""
    min_references: int
    """Tasks that a proposer's prompt must show at least."""

    @property
    def num_shown(self) -> int | None:
        """How many pairs of an induction task a solver sees; the others check its program. None: half of them."""
        ...

    def propose(
        self, task: Task, references: Sequence[Triplet], parts: Sequence[str] = (), *, is_seeding: bool = False
    ) -> str:
        """Prompt that asks for a new task; for induction, `references` is the one program to write inputs for.

        parts: earlier programs that the new one has to build on, as g_0, g_1 ... is_seeding: for the first buffers.
        """
        ...

    def solve(self, task: Task, item: Triplet | Problem) -> str:
        """Prompt that asks for the hidden part of `item`."""
        ...

    def parse_proposal(self, task: Task, completion: str, *, is_seeding: bool = False) -> Proposal | None:
        """The proposal in a completion; None if a part is missing. An induction proposal has an empty program."""
        ...

    def render_answer(self, task: Task, answer: str) -> str:
        """The completion that gives `answer` in the form that `solve` asks for; the way back from `parse_answer`."""
        ...

    def parse_answer(self, task: Task, completion: str) -> str | None:
        """Literal (ded), argument list (abd) or program (ind) of a completion; None if there is none.

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
