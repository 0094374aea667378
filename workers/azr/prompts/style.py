"""What a prompt style must offer: text for the six cells, and the way back from a completion to its parts.

A style knows no model and runs no program: whether a proposal is valid or an answer right is for others to judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from workers.azr.tasks import Problem, Task, Triplet


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a proposer wrote: one input for deduction and abduction, `num_inputs` of them for induction."""

    program: str
    inputs: tuple[str, ...]
    """Source text of each argument list, for example `'uvw'`."""
    message: str = ""


class PromptStyle(Protocol):
    """One way of talking to a model: the text of prompts and the form of answers."""

    name: str
    num_inputs: int
    """Inputs that an induction proposal must bring."""
    num_shown: int
    """How many of them a solver sees; the others check its program."""
    stop: tuple[str, ...]
    """Texts that end a completion."""

    def propose(self, task: Task, references: Sequence[Triplet]) -> str:
        """Prompt that asks for a new task; for induction, `references` is the one program to write inputs for."""
        ...

    def solve(self, task: Task, item: Triplet | Problem) -> str:
        """Prompt that asks for the hidden part of `item`."""
        ...

    def parse_proposal(self, task: Task, completion: str) -> Proposal | None:
        """The proposal in a completion; None if it is malformed. An induction proposal has an empty program."""
        ...

    def parse_answer(self, task: Task, completion: str) -> str | None:
        """Literal (ded), argument list (abd) or program (ind) of a completion; None if it is malformed."""
        ...

    def is_worked(self, task: Task, completion: str) -> bool:
        """Whether the completion reasons before it answers."""
        ...
