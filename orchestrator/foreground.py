"""Lets a run leave its terminal: `q` gives the prompt back to the shell, and the run goes on.

On a terminal `run` forks before it opens anything. The child is the master. The parent is all that the shell knows: it
passes signals on, and ends as the master ends, or with 0 once the master has left. If it is killed, so is the master.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

PR_SET_PDEATHSIG = 1
LEFT = signal.SIGUSR2
"""From the master to its parent: it has left the terminal."""
PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP}


class Foreground:
    """The shell's side of a master. There is none without a terminal, and none once the run has left."""

    def __init__(self) -> None:
        self._parent = 0

    @property
    def is_there(self) -> bool:
        return self._parent > 0

    def fork(self) -> None:
        """Go on as a child of this process, which only waits for it. Returns in the child."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        before, parent = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, LEFT, signal.SIGCHLD}), os.getpid()
        if (child := os.fork()) != 0:
            _wait_for(child)
        _die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._parent = parent

    def leave(self) -> None:
        """Let go of the terminal and the shell. The caller has restored the terminal and says nothing more to it."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        os.close(nowhere)
        parent, self._parent = self._parent, 0
        with suppress(PermissionError):
            os.setsid()
        _die_with_parent(0)
        with suppress(ProcessLookupError):
            os.kill(parent, LEFT)


FOREGROUND = Foreground()


def _die_with_parent(number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def _wait_for(child: int) -> NoReturn:
    """Pass signals on until the child ends or leaves; then end likewise.

    Ctrl+C reaches the child from the terminal itself. Passed on as well, it could count as pressed twice.
    """
    while True:
        told = signal.sigwaitinfo({*PASSED_ON, LEFT, signal.SIGCHLD})
        if told.si_signo == LEFT and told.si_pid == child:
            os._exit(0)
        if told.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                _end_as(os.waitstatus_to_exitcode(status))
        elif told.si_signo != signal.SIGINT or told.si_code <= 0:  # 0 and below: a process sent it
            with suppress(ProcessLookupError):
                os.kill(child, told.si_signo)


def _end_as(code: int) -> NoReturn:
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
