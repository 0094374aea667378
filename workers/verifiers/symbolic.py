"""Asks math-verify whether two expressions are equal, in a separate process with limits.

math-verify uses signals for its time limits, which only work in a main thread, and has no memory limit. So it never
runs in the trainer's process. `symbolic_server.py` is the other half.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from state import python
from workers.verifiers.answers import is_name, plain, read_number

_COMMANDS = frozenset(
    {
        "frac",
        "dfrac",
        "tfrac",
        "sqrt",
        "pi",
        "cdot",
        "times",
        "div",
        "left",
        "right",
        "ln",
        "log",
        "sin",
        "cos",
        "tan",
        "infty",
        "circ",
    }
)
_CHARACTERS = re.compile(r"[A-Za-z0-9\s\\{}()\[\]^_+\-*/.,|<>=°]*")
_WORD = re.compile(r"\\?[A-Za-z]+")
DEEPEST = 8
MOST_DIGITS_IN_A_ROW = 20


class Limits(Struct, frozen=True):
    """Limits of one comparison. CPU time decides; wall time is the fallback for a very busy machine."""

    cpu_s: int = 2
    wall_s: float = 30.0
    memory_mb: int = 1024


class Equality(Struct, frozen=True):
    is_equal: bool
    reason: str


def is_installed() -> bool:
    """Whether math-verify and its LaTeX parser, an extra of its own, are installed."""
    return all(find_spec(name) is not None for name in ("math_verify", "latex2sympy2_extended", "antlr4"))


def is_askable(gold: str, answer: str) -> bool:
    """Whether both are short expressions without words; anything else is wrong without parsing. (pure)

    If the right answer is a number, only computable expressions qualify, because math-verify guesses: it reads `5 m`
    and `11_2` without their ends, `5 = 6` as 6, `0.5 1` as 0.5, and `12,3`, perhaps a broken number, as a set. If it is
    another expression without letters, lists and relations, so must the answer be: `3 = \\sqrt{2}` is read as its end.
    """
    cleaned, wanted = plain(answer), plain(gold)
    if cleaned is None or wanted is None:
        return False
    if read_number(gold) is not None:
        is_sound = _is_computable(cleaned)
    else:
        is_sound = _is_value(_without_name(cleaned)) or not _is_value(wanted)
    return is_sound and _is_expression(cleaned) and _is_expression(wanted)


_UNSOUND = re.compile(r"[,=<>|_°\[\]]|\\infty|\\circ|\\\{|[\d.}]\s+[\d.]|\}\d|\d\s*(?:\\[dt]?frac|\{)|\(\s*\)|\^[^{]\d")
"""Ambiguous: `2\\frac12` may be a mixed number or a product; `5{6}` is read as 56, and `2^10` as 2^1 beside a 0."""


def _is_computable(text: str) -> bool:
    """Whether it is one expression of digits, operators and commands, without anything that math-verify guesses at."""
    text = re.sub(r"\\sqrt\s*\[\d+\]", r"\\sqrt", _without_name(text))
    return _UNSOUND.search(text) is None and _is_value(text)


def _is_value(text: str) -> bool:
    return re.search("[A-Za-z,=<>]", re.sub(r"\\[A-Za-z]+", " ", text)) is None


def _without_name(text: str) -> str:
    """`x = 5` without what the value is called."""
    name, assigned, value = text.partition("=")
    return value if assigned and is_name(name.strip()) else text


def _is_expression(text: str | None) -> bool:
    if not text or _CHARACTERS.fullmatch(text) is None or re.search(rf"\d{{{MOST_DIGITS_IN_A_ROW + 1}}}", text):
        return False
    words = _WORD.findall(text)
    if any(word[1:] not in _COMMANDS if word.startswith("\\") else len(word) > 1 for word in words):
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return depth == 0 and deepest <= DEEPEST


class Symbolic:
    """Compares expressions. Its process starts with the first question. A context manager, for one thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None

    def compare(self, gold: str, answer: str) -> Equality:
        """Whether they are equal. A comparison that exceeds time or memory counts as unequal. Raises LonghaulError
        (INPUT) if math-verify does not work on this machine."""
        question = msgspec.json.encode([plain(gold), plain(answer)]) + b"\n"
        for _ in range(2):  # restart once a server that was killed from outside
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(question)
                process.stdin.flush()
                if line := process.stdout.readline():
                    return msgspec.json.decode(line, type=Equality)
            except BrokenPipeError:
                pass
            self.close()
        return Equality(False, "could not be compared: the comparing process ended")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            limits = msgspec.json.encode(self._limits).decode()
            self._process = subprocess.Popen(
                python.command("workers.verifiers.symbolic_server", limits),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=python.finding_us(os.environ),
            )
            assert self._process.stdout is not None
            ready = self._process.stdout.readline().decode(errors="replace").strip()
            if ready != "ready":
                self.close()
                raise LonghaulError(
                    f"math-verify does not work here: {ready or 'its process ended at once'}",
                    kept="everything; nothing was judged",
                    next_command=f"{sys.executable} -m workers.verifiers.symbolic_server '{limits}'",
                    exit_code=ExitCode.INPUT,
                )
        return self._process

    def close(self) -> None:
        """End the process. May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
