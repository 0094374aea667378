"""What running a program yields, and what is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How a run ended."""

    OK = "ok"
    ERROR = "error"
    """An exception left the program."""
    NOT_LITERAL = "not_literal"
    """It returned what no literal can write: a Counter, a range, an object."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    KILLED = "killed"
    """The process died, or it broke the protocol. Later inputs of the same batch are `killed`, too."""
    REJECTED = "rejected"
    """Never ran: syntax error, no entry function, arguments that are no literals, too much source."""
    NONDETERMINISTIC = "nondeterministic"
    OUTPUT_TOO_LARGE = "output_too_large"


@dataclass(frozen=True)
class Result:
    """Outcome of one call."""

    status: Status
    value: str | None = None
    """Canonical literal text of what was returned; only with `ok`."""
    error_type: str = ""
    message: str = ""
    from_wall: bool = False
    """True: the wall clock decided. A busy machine can cause that, so training should drop the row."""
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Case:
    """One program and the argument texts that it is called with."""

    program: str
    inputs: tuple[str, ...]
    entry: str = "f"
