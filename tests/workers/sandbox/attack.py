"""What an attacking program is, and what it has at hand.

An attack defines `f(c)`; `c` names the canaries (see `canaries.py`). Where it reaches something that it must not, it
returns a text that begins with GOT. Anything else, an error or its own death, is a failed attack.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.sandbox import Status

_MODULES = """
    os sys ctypes socket threading time mmap signal gc inspect resource subprocess random fcntl multiprocessing
    builtins io importlib
"""
MODULES = tuple(_MODULES.split())
"""Importable in the suite, so that each attack gets as far as the layer that is meant to stop it."""

OK, ERROR, TIMEOUT, MEMORY, KILLED = Status.OK, Status.ERROR, Status.TIMEOUT, Status.MEMORY, Status.KILLED
NOT_LITERAL = Status.NOT_LITERAL
REJECTED, TOO_LARGE, WAVERS = Status.REJECTED, Status.OUTPUT_TOO_LARGE, Status.NONDETERMINISTIC
ANY: frozenset[Status] = frozenset()


@dataclass(frozen=True)
class Attack:
    """One program."""

    number: int
    """Its class."""
    name: str
    program: str
    ends: frozenset[Status] = ANY
    """How it may end with all layers; empty: in any way."""

    @property
    def label(self) -> str:
        return f"{self.number:02d} {self.name}"


PRELUDE = """
import os, sys, ctypes, socket, time, signal, resource, gc
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""


def attack(number: int, name: str, body: str, *ends: Status) -> Attack:
    """An attack whose body is that of `f(c)`, with `os`, `libc` and `call` at hand."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return Attack(number, name, f"{PRELUDE}\ndef f(c):\n{lines}\n", frozenset(ends))


def plain(number: int, name: str, program: str, *ends: Status) -> Attack:
    """An attack that is a whole program."""
    return Attack(number, name, program, frozenset(ends))
