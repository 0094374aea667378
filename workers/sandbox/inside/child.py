"""Runs one program in a sealed, freshly forked process and sends a frame for each call.

The program can read and change everything in its process, so nothing here is worth stealing: there is no expected
answer, no other program, and the nonce is valid for this program's own results only.
"""

from __future__ import annotations

import os
import sys
from json.encoder import encode_basestring_ascii
from marshal import loads
from time import process_time
from types import CodeType, ModuleType
from typing import Any

from . import codec
from .frames import HEADER, MAX_BODY

AMBIENT_DEPTH = 50_000
"""Recursion limit of an ambient program."""
STATEMENT = ""
"""Used as entry name: the argument is a statement, executed in the program's own namespace."""


_exec, _compile_text = exec, compile  # saved, so that a program cannot pass by replacing them


class Outcome:
    """The content of one frame."""

    __slots__ = ("error_type", "message", "status", "value")

    def __init__(self, status: str, value: str = "null", error_type: str = "", message: str = "") -> None:
        self.status, self.value, self.error_type, self.message = status, value, error_type, message

    def body(self, cpu_s: float | None) -> bytes:
        quote = encode_basestring_ascii
        spent = "null" if cpu_s is None else f"{cpu_s:.6f}"
        return f'["{self.status}",{self.value},{quote(self.error_type)},{quote(self.message)},{spent}]'.encode()


def run(
    packed: bytes,
    program_builtins: dict[str, Any],
    nonce: bytes,
    pipe: int,
    ambient: dict[str, Any] | None = None,
) -> None:
    """Run every call of the job. Returns once all frames are sent. ambient: the builtins of programs that ask for
    common modules without an import."""
    program, name, repeat, inputs, is_ambient = loads(packed)
    if is_ambient and ambient is not None:
        program_builtins = ambient
        sys.setrecursionlimit(AMBIENT_DEPTH)
    code = _compile(program)
    if isinstance(code, Outcome):
        _send(code, None, nonce, pipe)
        return
    # With a single input the process ends after it, so it may use the zygote's builtins: a copy touches 60 pages.
    alone = len(inputs) == 1
    for arguments in inputs:
        began = _cpu_now()
        entry = _load(code, name, program_builtins if alone else program_builtins.copy())
        for _ in range(repeat):
            outcome = entry if isinstance(entry, Outcome) else _call(entry, arguments)
            ended = _cpu_now()
            _send(outcome, ended - began if began is not None and ended is not None else None, nonce, pipe)
            began = ended


def _cpu_now() -> float | None:
    """CPU seconds of this process; None if the seccomp filter denies clocks."""
    try:
        return process_time()
    except OSError:
        return None


def _send(outcome: Outcome, cpu_s: float | None, nonce: bytes, pipe: int) -> None:
    body = outcome.body(cpu_s)
    if len(body) > MAX_BODY:
        body = Outcome("output_too_large", message=f"{len(body)} bytes").body(cpu_s)
    frame = nonce + HEADER.pack(len(body)) + body
    sent = os.write(pipe, frame)
    while sent < len(frame):
        sent += os.write(pipe, frame[sent:])


def _compile(program: str) -> CodeType | Outcome:
    try:
        return compile(program, "<program>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return Outcome("rejected", message=f"syntax error: {error.msg} (line {error.lineno})")
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return Outcome("rejected", message=f"cannot be compiled: {type(error).__name__}: {error}"[:500])


def _load(code: CodeType, entry: str, program_builtins: dict[str, Any]) -> Any:
    """Execute the program as a fresh module; returns its entry function, or an Outcome if there is none."""
    module = ModuleType("program")
    module.__dict__["__builtins__"] = program_builtins
    # dataclasses and typing look up a class's module by name.
    sys.modules["program"] = module
    try:
        exec(code, module.__dict__)  # noqa: S102  running the program is this process's whole purpose
    except BaseException as error:
        return _failure(error)
    if entry == STATEMENT:
        return lambda text: _exec(_compile_text(text, "<test>", "exec", dont_inherit=True), module.__dict__)
    function = module.__dict__.get(entry)
    if not callable(function):
        return Outcome("rejected", message=f"the program defines no function {entry!r}")
    return function


def _call(function: Any, arguments: bytes) -> Outcome:
    try:
        positional, named = loads(arguments)
        value = function(*positional, **named)
        return Outcome("ok", value=codec.encode(value))
    except codec.NotLiteral as error:
        return Outcome("not_literal", message=str(error))
    except codec.TooLarge as error:
        return Outcome("output_too_large", message=str(error))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> Outcome:
    if type(error) is MemoryError:
        return Outcome("memory", message="MemoryError")
    name = getattr(type(error), "__name__", None)
    try:
        message = str(error)
    except BaseException:
        message = "(its message could not be read)"
    return Outcome(
        "error",
        error_type=name[:100] if type(name) is str else "?",
        message=message[:500] if type(message) is str else "?",
    )
