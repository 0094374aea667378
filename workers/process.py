"""Sets up a worker process: signals, lifeline, stack dumps, OOM score and logging.

Imports nothing heavy, because it runs before anything slow: no early signal may kill the worker, and no worker may be
orphaned.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from profiles.errors import ExitCode

PR_SET_PDEATHSIG = 1
OOM_SCORE_ADJ = 500
"""Above the master's 0 and below the 1000 of sandboxed programs: the kernel kills the master last."""


MASTERS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Requests to the master. A service manager or a shutdown sends TERM to every process of the group at once."""


def ignore_signals() -> None:
    """Ignore the signals that are meant for the master, which then asks for a stop after the step. Call this first.

    The signals are ignored rather than handled, because SIG_IGN survives exec: sandboxes, ranks and the helper
    processes of libraries inherit it. The master ends a worker with `abort` and KILL; the lifeline ends it when the
    master dies.
    """
    for number in MASTERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the master started us with them blocked


def set_up(level: int, *, lifeline_variable: str = "", dies_with_parent: bool = True) -> None:
    """Call once per process: exit when the master dies, dump stacks on USR2, set the OOM score, log to stderr.

    level: of `logging`. lifeline_variable: environment variable with the lifeline's descriptor; empty: the caller
    watches its own lifeline.
    """
    import logging  # after the signals

    if lifeline_variable and (lifeline := inherited_fd(lifeline_variable)) is not None:
        watch_lifeline(lifeline)
    if dies_with_parent:
        die_with_parent()
    dump_on_usr2()
    offer_to_oom_killer()
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", stream=sys.stderr)


def leave(exit_code: int) -> NoReturn:
    """Exit at once: the teardown of a tensor library would delay the next worker."""
    import logging

    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def dump_on_usr2() -> None:
    """Write the stacks of all threads to worker.log on USR2, which the master sends before it kills a hung worker."""
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True, chain=False)


def inherited_fd(variable: str) -> int | None:
    """The file descriptor that `variable` holds, made non-inheritable; None if the variable is unset or empty."""
    text = os.environ.get(variable, "")
    if not text:
        return None
    fd = int(text)
    os.set_inheritable(fd, False)
    return fd


def watch_lifeline(fd: int) -> None:
    """Exit when the master is gone: only the master holds the other end of the pipe."""

    def wait_for_eof() -> None:
        while True:
            try:
                if not os.read(fd, 4096):
                    break
            except InterruptedError:
                continue
            except OSError:
                break
        os._exit(ExitCode.STORE)

    threading.Thread(target=wait_for_eof, name="lifeline", daemon=True).start()


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Get a signal when the parent dies. It backs up the lifeline, whose thread a native call with the GIL would
    block."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # not Linux
        libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl: no signal will come
            os._exit(ExitCode.STORE)


def offer_to_oom_killer() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - before pathlib
        file.write(str(OOM_SCORE_ADJ))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Disable garbage collection during slow imports, where it would take a sixth of the time.

    Imported objects stay for good, so they are also frozen out of later collections.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
