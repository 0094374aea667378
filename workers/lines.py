"""Runs a worker that serves one command: it reads a spec from standard input, replies in JSON lines, and exits.

`workers/line_contract.py` defines the messages, `orchestrator/line_worker.py` implements the command's side. Imports
nothing heavy.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from profiles.errors import ExitCode, LonghaulError
from workers import process
from workers.failures import exit_code_of
from workers.line_contract import Done, Error, Said

Say = Callable[[Said], None]
"""Sends one message to the command that started the worker."""
Spec = TypeVar("Spec")


def serve(
    spec_type: type[Spec],
    work: Callable[[Spec, Say], None],
    *,
    reads_input: bool = False,
    outlives_parent: bool = False,
    level: int = logging.WARNING,
) -> NoReturn:
    """Read the spec, do the work, report how it ended, and exit.

    reads_input: the work reads the input after the spec. Otherwise a closed input means that the command is gone, and
    ends this process at once. Call `process.ignore_signals()` before any other import, because only the command
    handles Ctrl+C.
    """
    process.set_up(level, dies_with_parent=not outlives_parent)
    # Send library output to the log, so that the command reads only our messages.
    lines = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def say(message: Said) -> None:
        lines.write(msgspec.json.encode(message) + b"\n")

    process.leave(_served(spec_type, work, say, reads_input=reads_input))


def _served(spec_type: type[Spec], work: Callable[[Spec, Say], None], say: Say, *, reads_input: bool) -> int:
    def read_and_work() -> None:
        line = sys.stdin.buffer.readline()
        if not reads_input:
            lifeline = os.dup(0)
            os.set_inheritable(lifeline, False)
            process.watch_lifeline(lifeline)
        work(msgspec.json.decode(line, type=spec_type), say)

    return reported(read_and_work, say)


def reported(work: Callable[[], None], say: Say) -> int:
    """Do the work, and report how it ended, as `Done` or `Error`. Returns the exit code of the process."""
    try:
        work()
    except BrokenPipeError:
        return ExitCode.STORE
    except LonghaulError as error:
        say(Error(error.what, int(error.exit_code), kept=error.kept, next_command=error.next_command))
        return error.exit_code
    except Exception as error:
        logging.error("the worker failed: %s", traceback.format_exc())
        code = exit_code_of(error)
        say(Error(f"{type(error).__name__}: {error}"[:2000], code))
        return code
    say(Done())
    return ExitCode.OK
