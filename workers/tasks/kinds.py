"""The vocabulary of self-play: three tasks, two roles, and the records that hold a verified task.

All fields are source text, so that a record survives a checkpoint, a prompt and a sandbox unchanged.
"""

from dataclasses import dataclass
from typing import Literal

Task = Literal["abd", "ded", "ind"]
Role = Literal["propose", "solve"]

TASKS: tuple[Task, ...] = ("abd", "ded", "ind")
"""Cell order of every step: abduction (find an input), deduction (find the output), induction (find the program)."""

ROLES: tuple[Role, ...] = ("propose", "solve")


@dataclass(frozen=True, slots=True)
class Triplet:
    """A program, one argument list and the value it gave when it was run: a deduction and an abduction task."""

    program: str
    input: str
    """The argument list as source text, for example `'uvw'` or `3, [1, 2]`."""
    output: str
    """repr of the value returned."""
    step: int
    """Training step that made it; 0 is the seed."""
    source: str
    """`seed`, `selfplay` or `import`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A hidden program seen through input/output pairs: an induction task."""

    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    message: str
    step: int
    source: str
