"""Requests to run a program, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from workers.sandbox.limits import Budget


class Status(Enum):
    """How a run ended."""

    OK = "ok"
    ERROR = "error"
    """An exception left the program."""
    NOT_LITERAL = "not_literal"
    """The return value cannot be written as a literal: a Counter, a range, an object."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    KILLED = "killed"
    """The process died or broke the protocol. Later inputs of the same case are `killed` too."""
    REJECTED = "rejected"
    """Never called: syntax error, no entry function, non-literal arguments, or source too large."""
    NONDETERMINISTIC = "nondeterministic"
    OUTPUT_TOO_LARGE = "output_too_large"


@dataclass(frozen=True)
class Result:
    """Outcome of one call."""

    status: Status
    value: str | None = None
    """Canonical literal text of the return value; only with `ok`."""
    error_type: str = ""
    message: str = ""
    from_wall: bool = False
    """True: the wall limit ended the call. A busy machine can cause that, so training should drop the row."""
    cpu_s: float = 0.0
    is_lost: bool = False
    """True: the sandbox's own process died twice. This is no verdict on the program."""

    @property
    def is_undecided(self) -> bool:
        """The machine ended the call, not the program."""
        return self.from_wall or self.is_lost


@dataclass(frozen=True)
class Script:
    """A whole program and its standard input."""

    program: str
    stdin: bytes = b""
    budget: Budget | None = None
    """None: the sandbox's default."""
    is_ambient: bool = False
    """True: common modules and their names are available without an import (`AMBIENT` in `inside/script.py`)."""


@dataclass(frozen=True)
class ScriptResult:
    """Outcome of one script."""

    status: Status
    """`ok`: it exited with code 0. `error`: it exited with another code, or died from a signal."""
    exit_code: int | None = None
    """As in `subprocess`: -n after signal n. None if the sandbox ended the process or never ran it."""
    stdout: bytes = b""
    """Everything written before the end, even if the process was killed."""
    stderr: bytes = b""
    """The first 64 KiB."""
    message: str = ""
    from_wall: bool = False
    cpu_s: float = 0.0
    is_lost: bool = False
    """As of a `Result`."""

    @property
    def is_undecided(self) -> bool:
        """As of a `Result`."""
        return self.from_wall or self.is_lost


@dataclass(frozen=True)
class Case:
    """A program and the argument texts to call it with."""

    program: str
    inputs: tuple[str, ...]
    entry: str = "f"
    budget: Budget | None = None
    """Of each call. None: the sandbox's default."""
    is_ambient: bool = False
    """As of a `Script`; needs a sandbox with `Limits.scripts`."""


@dataclass(frozen=True)
class Statements:
    """A program and statements. For each, the program runs anew, and the statement in its namespace."""

    program: str
    statements: tuple[str, ...]
    budget: Budget | None = None
    """Of each statement. None: the sandbox's default."""
