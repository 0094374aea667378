"""Runs a whole program in a fresh process: it reads standard input, writes standard output and returns an exit code.

This process reports nothing itself. The zygote observes the output and the exit from outside, so the program cannot
forge a result.
"""

from __future__ import annotations

import atexit
import importlib
import os
import random
import stat
import sys
import time
import traceback
from datetime import datetime
from marshal import loads
from types import ModuleType
from typing import Any

from .child import AMBIENT_DEPTH

_AMBIENT = """
    string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json
    builtins typing
"""
AMBIENT = tuple(_AMBIENT.split())
"""Modules whose public names an ambient script has without importing them; later modules shadow earlier ones."""
_fstat = os.fstat
EXIT_ERROR, EXIT_UNWRITTEN = 1, 120
"""Python's own exit codes: for an uncaught exception, and for output that could not be flushed."""


class Surroundings:
    """The builtins of a zygote's scripts. Must be created before sealing."""

    def __init__(self, program_builtins: dict[str, Any]) -> None:
        _use_late_parts()
        # `site` normally defines these two, but a zygote runs without it.
        self.plain = {**program_builtins, "exit": sys.exit, "quit": sys.exit}
        names: dict[str, Any] = {}
        for module in map(importlib.import_module, AMBIENT):
            public = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
            names |= {name: getattr(module, name) for name in public}
        names |= {name: importlib.import_module(name) for name in AMBIENT if name not in ("builtins", "typing")}
        # Part of the builtins, so the program's own names shadow them and no per-program copy is needed.
        self.ambient = {**names, **self.plain}


def _use_late_parts() -> None:
    """Build tables that are built on first use. Seeds `random` so that verdicts do not depend on luck."""
    random.seed(0)
    datetime.strptime(datetime.now().isoformat()[:10], "%Y-%m-%d")
    time.localtime()
    os.fstat = _size_of_nothing


def _size_of_nothing(fd: int) -> os.stat_result:
    """Stand-in for `os.fstat` on the three pipes: fast readers ask for a size; seccomp denies its system call."""
    if fd in (0, 1, 2):
        return os.stat_result((stat.S_IFIFO | 0o600, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    return _fstat(fd)


def run(packed: bytes | memoryview, surroundings: Surroundings) -> int:
    """Run the program and flush its output; returns the exit code."""
    program, is_ambient = loads(packed)
    stdout = sys.stdout
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = surroundings.ambient if is_ambient else surroundings.plain
    sys.modules["__main__"] = module
    if is_ambient:
        sys.setrecursionlimit(AMBIENT_DEPTH)
    code = _execute(program, module.__dict__)
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, stdout, sys.stderr):
            stream.flush()
    except BaseException:
        return code or EXIT_UNWRITTEN
    return code


def _execute(program: str, names: dict[str, Any]) -> int:
    try:
        exec(compile(program, "<program>", "exec", dont_inherit=True), names)  # noqa: S102  its whole purpose
    except SystemExit as error:
        return _exit_code(error.code)
    except BaseException as error:
        _tell(error)
        return EXIT_ERROR
    return 0


def _exit_code(asked: object) -> int:
    """Exit code of a `sys.exit` argument, by Python's rules."""
    if asked is None:
        return 0
    if isinstance(asked, int):
        return asked & 0xFF
    try:
        sys.stderr.write(f"{asked}\n")
    except BaseException:
        return EXIT_ERROR
    return EXIT_ERROR


def _tell(error: BaseException) -> None:
    """Print the traceback, without the frame of this module."""
    try:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, trace)
    except BaseException:
        return
