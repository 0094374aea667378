"""Injects faults into the fake trainer: `profile.fake.fault` is a comma-separated list of `name:step[:argument]`.

| name | effect at that step |
| --- | --- |
| hang | busy loop; the control thread still obeys `abort` |
| no_progress | sleeps for ever; heartbeats continue |
| hang_native | a native call holds the interpreter lock for ever; heartbeats stop |
| deaf | sleeps for ever and ignores `abort` |
| nan | the loss is not finite; argument: number of steps (default 1) |
| oom | out-of-memory error; argument: number of times (default 1: the retry succeeds) |
| exit | exits with the code in the argument (default 70) |
| kill | sends itself SIGKILL |
| zombie | leaves a zombie and a stray process in its own session, then continues |
| enospc, eio | raises OSError with this errno, like a failed write |
| error | raises RuntimeError |
| exhausted | the source of tasks ends (not a fault: happens in every attempt) |
| slow | every step sleeps; the number is in seconds, not a step (applies in every attempt) |

A fault strikes only in the first attempt of a cycle, unless its text ends in `!`.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from workers.control import Control

log = logging.getLogger("worker")

FOREVER_S = 86400
ALWAYS = frozenset({"exhausted", "slow"})


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's error, by which the runtime recognises it."""


@dataclass(frozen=True)
class Fault:
    name: str
    at: float
    argument: int | None = None
    is_persistent: bool = False

    def strikes(self, step: int, attempt: int) -> bool:
        """Whether the fault happens at this step of this attempt. (pure)"""
        if attempt > 1 and not self.is_persistent and self.name not in ALWAYS:
            return False
        return self.at <= step < self.at + (self.argument or 1) if self.name == "nan" else step == self.at


def parse(text: str) -> tuple[Fault, ...]:
    """Parse the faults in `text`. Raises ValueError for an unknown name. (pure)"""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, at, *rest = part.rstrip("!").split(":")
        if name not in EFFECTS and name not in {"nan", "oom", "exhausted", "slow"}:
            raise ValueError(f"unknown fault {name!r} in {text!r}")
        found.append(Fault(name, float(at), int(rest[0]) if rest else None, part.endswith("!")))
    return tuple(found)


def _hang(control: Control, argument: int | None) -> None:
    while True:
        pass


def _no_progress(control: Control, argument: int | None) -> None:
    while True:
        time.sleep(FOREVER_S)


def _hang_native(control: Control, argument: int | None) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    while True:  # the signal that dumps the stacks also interrupts a sleep
        ctypes.PyDLL(None).sleep(FOREVER_S)  # unlike CDLL, PyDLL holds the interpreter lock


def _deaf(control: Control, argument: int | None) -> None:
    control.deafen()
    log.info("deaf from now on")
    _no_progress(control, argument)


def _exit(control: Control, argument: int | None) -> None:
    os._exit(70 if argument is None else argument)


def _kill(control: Control, argument: int | None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _zombie(control: Control, argument: int | None) -> None:
    if os.fork() == 0:
        os._exit(0)
    subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({FOREVER_S})"], start_new_session=True)


def _enospc(control: Control, argument: int | None) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _eio(control: Control, argument: int | None) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _error(control: Control, argument: int | None) -> None:
    raise RuntimeError("the fake trainer was asked to fail")


EFFECTS: dict[str, Callable[[Control, int | None], None]] = {
    "hang": _hang,
    "no_progress": _no_progress,
    "hang_native": _hang_native,
    "deaf": _deaf,
    "exit": _exit,
    "kill": _kill,
    "zombie": _zombie,
    "enospc": _enospc,
    "eio": _eio,
    "error": _error,
}
