"""Standard streams: a closed or broken one ends no run, and a signal always ends the wait for a line."""

from __future__ import annotations

import os
import select
import signal
import socket
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


def read_line() -> str:
    """The next line of standard input; "" at its end. Call it in the main thread.

    A signal that arrives between Python's last look and the system call would be seen only after the line. The byte
    that it leaves in a socket ends `select` at once.
    """
    told, tell = socket.socketpair()
    with told, tell:
        told.setblocking(False)
        tell.setblocking(False)
        before = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
        try:
            while sys.stdin not in select.select([sys.stdin, told], [], [])[0]:
                told.recv(64)  # Python runs the handler between two instructions
        finally:
            signal.set_wakeup_fd(before)
    return sys.stdin.readline()


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
