"""A launcher as a batch system would have it: the master knows a job id, no process, and no process has a mark.

Each job is a shell that runs the worker and writes down its exit code, in the folder $JOBS of the master.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from orchestrator.launchers.launcher import Handle, Life, Order, Started
from orchestrator.launchers.local import Local
from profiles.schema import Profile
from workers.contract import ATTEMPT_VARIABLE

SCRIPT = 'echo $$ >"$0.pid"; "$@"; echo $? >"$0.exit"'


class Jobs:
    def __init__(self, profile: Profile) -> None:
        self.local = Local(profile)
        self.folder = Path(os.environ["JOBS"])

    def start(self, order: Order) -> Started:
        command = ("/bin/sh", "-c", SCRIPT, str(self.folder / order.handle.token), *order.command)
        environment = {name: value for name, value in order.environment.items() if name != ATTEMPT_VARIABLE}
        started = self.local.start(replace(order, command=command, environment=environment))
        return replace(started, handle=msgspec.structs.replace(order.handle, job=order.handle.token))

    def poll(self, handle: Handle) -> Life:
        if (shell := self._shell(handle)) is not None:
            return Life(is_stopped=shell.status() == psutil.STATUS_STOPPED)
        with suppress(FileNotFoundError):
            code = int((self.folder / f"{handle.job}.exit").read_text())
            return Life(code if code < 128 else 128 - code)
        return Life(-signal.SIGKILL)

    def signal(self, handle: Handle, number: int) -> None:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if (shell := self._shell(handle)) is None:
                return
            if number == signal.SIGKILL:
                os.killpg(shell.pid, number)
            else:
                shell.children()[0].send_signal(number)

    def wait(self, handle: Handle, seconds: float | None = None) -> Life:
        until = time.monotonic() + (3600 if seconds is None else seconds)
        while (life := self.poll(handle)).exit_code is None and time.monotonic() < until:
            time.sleep(0.01)
        return life

    def adopt(self, owner: str, handles: Sequence[Handle]) -> list[Handle]:
        """The job of a handle that was written before the start has the name of its token."""
        mine = [msgspec.structs.replace(handle, job=handle.token) for handle in handles]
        return [handle for handle in mine if self._shell(handle) is not None]

    def _shell(self, handle: Handle) -> psutil.Process | None:
        """The job's own process; None once it has ended. It may take a moment to write its number."""
        path = self.folder / f"{handle.job}.pid"
        deadline = time.monotonic() + 5
        while not path.exists() or not path.read_text().endswith("\n"):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        with suppress(psutil.NoSuchProcess):
            shell = psutil.Process(int(path.read_text()))
            return None if shell.status() == psutil.STATUS_ZOMBIE else shell
        return None
