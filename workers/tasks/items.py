"""The vocabulary of self-play: names of tasks and roles, and the two forms in which prompts show a task.

All fields are source text, so a record passes through checkpoint, prompt and sandbox unchanged.
"""

from dataclasses import dataclass
from typing import Literal

Task = str
"""Name of a kind of task; `workers.tasks.kinds.registry` has its record."""
Role = Literal["propose", "solve"]

ROLES: tuple[Role, ...] = ("propose", "solve")


@dataclass(frozen=True, slots=True)
class Triplet:
    """A program, one argument list, and the value that it returned."""

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
class HiddenProgram:
    """A hidden program seen through input/output pairs."""

    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    message: str
    step: int
    source: str


Item = Triplet | HiddenProgram
