"""The workers of a master: at most one active, at most one warm standby."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import handles
from orchestrator.copies import owner_of
from orchestrator.launchers.environment import clean_environment
from orchestrator.launchers.launcher import Handle, Order
from orchestrator.launchers.registry import launcher_named
from orchestrator.schedule import Train, Validate
from orchestrator.supervise import Worker
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Run
from state import durable, python
from state.history import AttemptFacts
from state.layout import AttemptDir, RunDir
from state.states import AttemptState
from workers.contract import Message, WorkerSpec

COMMAND = tuple(python.command("workers"))
LOG_BYTES_KEPT = 20 << 20
WARM_AHEAD_STEPS = 3
"""A standby is started when so many steps of the cycle are left: importing takes a few seconds."""


@dataclass
class Active:
    """The attempt under way."""

    worker: Worker
    attempt: AttemptFacts
    action: Train | Validate
    end_step: int
    directory: AttemptDir
    oom_kills_before: int
    state: AttemptState = AttemptState.STARTING
    hung: str = ""
    """Name of the deadline that passed."""
    stop_sent: bool = False
    newest: str = ""
    """checkpoint_id of the newest one that it made."""


class WorkerPool:
    """Starts, keeps and replaces workers; `settings.launcher` carries it out."""

    def __init__(self, run: RunDir, run_id: str, settings: Run) -> None:
        self.run = run
        self.owner = owner_of(run, run_id)
        self.settings = settings
        self.launcher = launcher_named(settings.launcher)
        self.active: Active | None = None
        self.standby: Worker | None = None
        self.next_standby_at = 0.0
        """After a standby died: not before this (monotonic)."""

    def workers(self) -> list[Worker]:
        active = self.active.worker if self.active is not None else None
        return [worker for worker in (active, self.standby) if worker is not None]

    @property
    def train_worker(self) -> Worker | None:
        """The active worker, if it trains."""
        active = self.active
        return active.worker if active is not None and isinstance(active.action, Train) else None

    def warm_up(self, now: float) -> None:
        """Have a standby, unless one died a moment ago."""
        if self.standby is None and now >= self.next_standby_at:
            self.standby = self.spawn(now)

    def spawn(self, now: float) -> Worker:
        token = secrets.token_hex(6)
        log = self.run.standby_logs / f"{token}.log"
        handle = Handle(self.settings.launcher, self.owner, token)
        # Which imports it does before it has a task.
        environment = clean_environment(self.owner, token, self.settings.worker)
        handles.write(self.run, handle)  # a kill during the start: the next master knows whom to ask for it
        try:
            started = self.launcher.start(Order(handle, COMMAND, environment, log))
        except OSError as error:
            raise no_worker(error, log) from error
        worker = Worker(self.launcher, started, log, now)
        try:
            handles.write(self.run, worker.handle)
        except LonghaulError:
            worker.end()
            worker.close()
            raise
        return worker

    def take(self, now: float) -> Worker:
        """The standby if there is one in good health, else a new process."""
        worker, self.standby = self.standby, None
        if worker is not None and not worker.reap() and worker.kill is None:
            return worker
        if worker is not None:
            self.discard(worker)
        return self.spawn(now)

    def assign(self, worker: Worker, spec: WorkerSpec, directory: AttemptDir, now: float) -> None:
        """Move the worker's log into its attempt, and tell it to start."""
        with durable.explained("cannot move the worker's log to", directory.log), suppress(FileNotFoundError):
            worker.log.replace(directory.log)
            worker.log = directory.log
        worker.watch = replace(worker.watch, started_at=now, progress_at=now, first_step=spec.first_step)
        worker.send(Message(type="start", path=str(directory.spec), step=spec.first_step))

    def discard(self, worker: Worker) -> None:
        """Forget a worker that has ended, and the log of one that never had an attempt."""
        worker.close()
        handles.forget(self.run, worker.token)
        if worker.log.parent == self.run.standby_logs:
            worker.log.unlink(missing_ok=True)

    def dismiss_standby(self) -> None:
        """End it at once; it holds nothing."""
        if self.standby is not None:
            self.standby.end()
            self.discard(self.standby)
            self.standby = None


LIMITS = {
    errno.EMFILE: "ulimit -n   (open files of this process)",
    errno.ENFILE: "sysctl fs.file-max   (open files of this machine)",
    errno.EAGAIN: "ulimit -u   (processes of this user)",
    errno.ENOMEM: "free -h   (memory of this machine)",
}
"""What a refused start ran into, as the command that shows it."""


def no_worker(error: OSError, log: Path) -> LonghaulError:
    """What a person is told when the system does not let us start a process."""
    kept = "the head and everything that was committed"
    return durable.os_failure(error, "cannot start a worker with the log", log, kept) or LonghaulError(
        f"cannot start a worker: {error.strerror}",
        kept=kept,
        next_command=LIMITS.get(error.errno or 0, "dmesg | tail"),
        exit_code=ExitCode.INTERNAL,
    )


def rotate_log(log: Path, limit: int = LOG_BYTES_KEPT) -> None:
    """Copy-truncate: the writer appends, so it goes on at the new end. The last `limit` bytes are kept."""
    with suppress(OSError):
        if log.stat().st_size <= 2 * limit:
            return
        with log.open("rb+") as file:
            file.seek(-limit, os.SEEK_END)
            tail = file.read()
            log.with_suffix(".log.1").write_bytes(tail)
            file.truncate(0)


def reap_strangers(known: Iterable[int], on_reaped: Callable[[int], None] = lambda pid: None) -> None:
    """Collect orphans that came to us as subreaper; our own workers are left to their `Worker.reap`."""
    ours = set(known)
    with suppress(ChildProcessError):
        while (info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if info.si_pid in ours:
                return  # it is in front of the queue; the strangers behind it come next time
            os.waitpid(info.si_pid, 0)
            on_reaped(info.si_pid)


def oom_kills() -> int:
    """Kills by the kernel's out-of-memory killer so far, in our cgroup and on the machine."""
    total = 0
    for file in (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat")):
        with suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    total += int(value)
    return total


def standby_is_due(active: Active) -> bool:
    """While validating or seeding always; while training when the cycle comes to its end."""
    if isinstance(active.action, Validate) or active.action.phase == "seed":
        return True
    return active.worker.step >= active.end_step - WARM_AHEAD_STEPS and active.worker.watch.steps_done > 0
