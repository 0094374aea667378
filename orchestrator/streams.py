"""Standard input, output and error that are closed, or whose reader is gone: none of them is worth a run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO


def open_closed_ones() -> None:
    """Lead standard descriptors that are closed (`>&-`) to /dev/null. Call before anything else is opened.

    The next file would get the free number: the store as descriptor 1, and what a library prints written into it.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "r" if fd == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def say(text: str) -> None:
    """Write to standard output; if nobody can read it, that costs the text and nothing else."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def settle() -> OSError | None:
    """Write out what standard output and error still hold. Left to the interpreter, a failure changes the exit code.

    Returns why standard output does not take it, unless its reader just left.
    """
    failed: OSError | None = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                failed = error
            silence(stream)
        except ValueError:  # closed
            pass
    return failed


def silence(stream: IO[str]) -> None:
    """What is written from now on, and what the stream holds, goes nowhere."""
    with suppress(OSError, ValueError):
        fd = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        os.close(nowhere)
    with suppress(OSError, ValueError):
        stream.flush()
