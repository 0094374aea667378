"""What a worker process owes its master from its first line on: signals, lifeline, dumps, a modest OOM score.

No heavy import here: it runs before anything that takes time, so that no early signal can kill and no orphan can stay.
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
"""Above the master's 0 and below the programs' 1000: the kernel takes the master last."""


MASTERS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Requests to the master. A service manager or a shutdown sends TERM to every process of the group at once."""


def ignore_signals() -> None:
    """Leave the end to the master: it gets the same signal, and asks for a stop after the step. Call this first.

    Ignored rather than handled: what is ignored stays so across exec, so sandboxes, ranks and the helper processes of
    libraries inherit it. The master itself ends a worker by `abort` and KILL, and a dead master by the lifeline.
    """
    for number in MASTERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the master has them blocked until we are here


def set_up(level: int, *, lifeline_variable: str = "", dies_with_parent: bool = True) -> None:
    """What comes next, once for each process: its end with that of its master, dumps, OOM score, and a log on stderr.

    level: of `logging`. lifeline_variable: names the descriptor of the lifeline; empty: whoever calls watches another.
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
    """End at once: the teardown of a tensor library takes longer than a hand-over may."""
    import logging

    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def dump_on_usr2() -> None:
    """USR2 writes the stacks of all threads to worker.log: the master sends it before it ends a hung worker."""
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True, chain=False)


def inherited_fd(variable: str) -> int | None:
    """The file descriptor that `variable` names, not passed on to children; None where there is none."""
    text = os.environ.get(variable, "")
    if not text:
        return None
    fd = int(text)
    os.set_inheritable(fd, False)
    return fd


def watch_lifeline(fd: int) -> None:
    """End this process when the master is gone: only the master holds the pipe's other end."""

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


def die_with_parent() -> None:
    """The second line behind the lifeline: a native call that keeps the GIL would keep the lifeline thread too."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # not Linux
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died between the two lines: no signal will come
            os._exit(ExitCode.STORE)


def offer_to_oom_killer() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - before pathlib
        file.write(str(OOM_SCORE_ADJ))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Around imports that take seconds, of which looking for garbage would be a sixth: what they make stays for good.

    It is left out of later searches too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
