"""A worker that serves one command: told what to do on its standard input, it answers in JSON lines, then leaves.

`workers/line_contract.py` has the messages, `orchestrator/line_worker.py` the other side. Nothing heavy is imported
here.
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
"""One line to the command that started us."""
Spec = TypeVar("Spec")


def serve(
    spec_type: type[Spec],
    work: Callable[[Spec, Say], None],
    *,
    reads_input: bool = False,
    outlives_parent: bool = False,
    level: int = logging.WARNING,
) -> NoReturn:
    """Read the spec, do the work, tell how it ended, and end this process.

    reads_input: the work reads what follows the spec; else an input that is closed, as nobody waits for us any more,
    ends this process at once. Call `process.ignore_signals()` before anything else is imported: Ctrl+C is for the
    command alone.
    """
    process.set_up(level, dies_with_parent=not outlives_parent)
    # What libraries print goes to the log, and only our lines to the one who reads them.
    lines = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def say(message: Said) -> None:
        lines.write(msgspec.json.encode(message) + b"\n")

    process.leave(_served(spec_type, work, say, reads_input=reads_input))


def _served(spec_type: type[Spec], work: Callable[[Spec, Say], None], say: Say, *, reads_input: bool) -> int:
    try:
        line = sys.stdin.buffer.readline()
        if not reads_input:
            lifeline = os.dup(0)
            os.set_inheritable(lifeline, False)
            process.watch_lifeline(lifeline)
        work(msgspec.json.decode(line, type=spec_type), say)
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
