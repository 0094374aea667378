"""Keeps a closed or broken standard stream from ending a run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO


def open_closed_ones() -> None:
    """Open closed standard descriptors (`>&-`) on /dev/null. Call before opening anything else.

    Otherwise the next file gets the free number: with the store as descriptor 1, a library's prints would go into it.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)  # open may return this very number
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "r" if fd == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def say(text: str) -> None:
    """Write to standard output; if that fails, only the text is lost."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def settle() -> OSError | None:
    """Flush standard output and error. A failure at interpreter exit would change the exit code.

    Returns the error of standard output, unless its reader has closed the pipe.
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
    """Send everything still buffered in or later written to the stream to /dev/null."""
    with suppress(OSError, ValueError):
        fd = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        os.close(nowhere)
    with suppress(OSError, ValueError):
        stream.flush()
