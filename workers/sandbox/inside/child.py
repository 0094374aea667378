"""One program in one fresh process: seal, run, send a frame for each call, leave.

Everything here may be read and changed by the program that runs in the same process. It therefore holds nothing worth
having: no expected answer, no other program, and a nonce that is good for this program's own results only.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from types import CodeType, ModuleType
from typing import Any

from . import codec

MAX_BODY = 1 << 20
"""Bytes of one result."""


class Outcome(dict[str, Any]):
    """What a frame says: `status` and what belongs to it."""


def run(job: dict[str, Any], program_builtins: dict[str, Any], nonce: bytes, pipe: int) -> None:
    """Run every call of the job. Returns when all frames are sent."""
    send = _sender(nonce, pipe)
    code = _compile(job["program"])
    if isinstance(code, Outcome):
        send(code)
        return
    gc.enable()
    for tree in job["inputs"]:
        entry = _load(code, job["entry"], program_builtins)
        for _ in range(job["repeat"]):
            send(entry if isinstance(entry, Outcome) else _call(entry, tree))


def _sender(nonce: bytes, pipe: int) -> Any:
    write = os.write

    def send(outcome: Outcome) -> None:
        body = json.dumps(outcome).encode()
        if len(body) > MAX_BODY:
            body = json.dumps({"status": "output_too_large", "message": f"{len(body)} bytes"}).encode()
        left = memoryview(nonce + len(body).to_bytes(4, "big") + body)
        while left:
            left = left[write(pipe, left) :]

    return send


def _compile(program: str) -> CodeType | Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(program, "<program>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return Outcome(status="rejected", message=f"syntax error: {error.msg} (line {error.lineno})")
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return Outcome(status="rejected", message=f"cannot be compiled: {type(error).__name__}: {error}"[:500])


def _load(code: CodeType, entry: str, program_builtins: dict[str, Any]) -> Any:
    """The entry function of a freshly executed module, or why there is none."""
    module = ModuleType("program")
    # A copy for each load: names that one input adds to the builtins are gone for the next.
    module.__dict__["__builtins__"] = dict(program_builtins)
    # dataclasses and typing look a class's module up by name.
    sys.modules["program"] = module
    try:
        exec(code, module.__dict__)  # noqa: S102  running the program is this process's whole purpose
    except BaseException as error:
        return _failure(error)
    function = module.__dict__.get(entry)
    if not callable(function):
        return Outcome(status="rejected", message=f"the program defines no function {entry!r}")
    return function


def _call(function: Any, tree: Any) -> Outcome:
    try:
        positional, keywords = tree
        arguments = [codec.decode(item) for item in positional]
        named = {name: codec.decode(item) for name, item in keywords.items()}
        value = function(*arguments, **named)
        return Outcome(status="ok", value=codec.encode(value))
    except codec.NotLiteral as error:
        return Outcome(status="error", error_type="NotLiteral", message=str(error))
    except codec.TooLarge as error:
        return Outcome(status="output_too_large", message=str(error))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> Outcome:
    if type(error) is MemoryError:
        return Outcome(status="memory", message="MemoryError")
    name = getattr(type(error), "__name__", None)
    try:
        message = str(error)
    except BaseException:
        message = "(its message could not be read)"
    return Outcome(
        status="error",
        error_type=name[:100] if type(name) is str else "?",
        message=message[:500] if type(message) is str else "?",
    )
