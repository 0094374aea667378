"""A worker that is told what to do on its standard input and answers in JSON lines: its process, and its end.

For workers that serve one command of a person. Nothing heavy is imported here.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from profiles.errors import ExitCode, LonghaulError
from workers import process


class Say(Protocol):
    """One line to the command that started us."""

    def __call__(self, type_: str, /, **data: Any) -> None: ...


def serve(work: Callable[[bytes, Say], None], kept: str, *, dies_with_parent: bool = True) -> int:
    """Read the first line, do the work, tell how it ended; returns the exit code. kept: what an unforeseen end leaves.

    Call `process.ignore_signals()` before anything else is imported: Ctrl+C is for the command alone.
    """
    if dies_with_parent:
        process.die_with_parent()
    process.dump_on_usr2()
    process.offer_to_oom_killer()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    # What libraries print goes to the log, and only our lines to the one who reads them.
    lines = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def say(type_: str, /, **data: Any) -> None:
        lines.write(msgspec.json.encode({"type": type_, **data}) + b"\n")

    try:
        work(sys.stdin.buffer.readline(), say)
    except BrokenPipeError:
        return int(ExitCode.STORE)
    except LonghaulError as error:
        say("error", what=error.what, kept=error.kept, next_command=error.next_command, exit_code=int(error.exit_code))
        return int(error.exit_code)
    except Exception as error:
        from workers.failures import exit_code_of

        logging.error("the worker failed: %s", traceback.format_exc())
        code = exit_code_of(error)
        say("error", what=f"{type(error).__name__}: {error}"[:2000], kept=kept,
            next_command="python -m orchestrator doctor", exit_code=code)  # fmt: skip
        return code
    say("done")
    return int(ExitCode.OK)


def leave_when_input_ends() -> None:
    """Whoever asked holds the other end of our input: when it closes, nobody waits for us any more."""
    lifeline = os.dup(0)
    os.set_inheritable(lifeline, False)
    process.watch_lifeline(lifeline)


def leave(exit_code: int) -> None:
    """The teardown of a tensor library takes long."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(exit_code)
