"""Manages a master's workers: at most one active worker, one or two warm standbys, and one that was started ahead."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator import handles
from orchestrator.copies import owner_of
from orchestrator.launchers.environment import clean_environment
from orchestrator.launchers.launcher import BatchLauncher, Handle, Order
from orchestrator.launchers.registry import launcher_named
from orchestrator.nodes import NOBODY, Avoid
from orchestrator.ram import ram_available
from orchestrator.schedule import Train, Validate
from orchestrator.supervise import Worker
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state import durable, python
from state.crash import crash_point
from state.history import AttemptFacts
from state.layout import AttemptDir, RunDir
from state.states import AttemptState
from workers.contract import Message, WorkerSpec, needs_of

COMMAND = tuple(python.command("workers"))
LOG_BYTES_KEPT = 20 << 20
SPARE_BYTES = 4 << 30


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
    """Name of the missed deadline; empty: none."""
    stop_sent: bool = False
    failed_nodes: list[str] = field(default_factory=list)
    """Failed nodes of its job that are already recorded."""
    newest: str = ""
    """checkpoint_id of its newest checkpoint."""


@dataclass(frozen=True)
class Prepared:
    """An attempt that was started ahead: while a cycle trains, its worker loads the model; after that, until the cycle
    is validated, it trains and saves nothing. No row tells of it, and nothing that it did counts, unless the attempt is
    started."""

    worker: Worker
    action: Train
    spec: WorkerSpec
    directory: AttemptDir
    waits_for_head: bool = False
    """Whether its spec names the head with which it loads, and not yet that from which it trains."""


class WorkerPool:
    """Starts, assigns and replaces workers through the launcher named in `launch.launcher`."""

    def __init__(self, run: RunDir, run_id: str, profile: Profile, incarnation: str) -> None:
        self.run = run
        self._incarnation = incarnation
        self.owner = owner_of(run, run_id)
        self.kind, self._needs = profile.run.worker, needs_of(profile)
        self.launcher_name = profile.launch.launcher
        self.launcher = launcher_named(self.launcher_name, profile)
        self.active: Active | None = None
        self.standbys: list[Worker] = []
        """The next to be taken first."""
        self.prepared: Prepared | None = None
        self.next_standby_at = 0.0
        """Earliest time to start another standby after one died (monotonic)."""

    def workers(self) -> list[Worker]:
        active = self.active.worker if self.active is not None else None
        prepared = self.prepared.worker if self.prepared is not None else None
        return [worker for worker in (active, *self.standbys, prepared) if worker is not None]

    @property
    def train_worker(self) -> Worker | None:
        """The active worker, if it trains."""
        active = self.active
        return active.worker if active is not None and isinstance(active.action, Train) else None

    def new_token(self) -> str:
        """Names one worker in its messages, its environment and that of all that it starts: its sandbox, other ranks.

        It begins with the master's incarnation, so that each of them tells which start of a master it belongs to.
        """
        return f"{self._incarnation}{secrets.token_hex(6)}"

    def warm_up(self, now: float, wanted: int = 1) -> None:
        """Start a standby if there are fewer than wanted, one after another, because they load their libraries.

        Not if one just died or the launcher starts workers only with a task."""
        is_loading = any(not one.watch.ready for one in self.standbys)
        if len(self.standbys) >= wanted or is_loading or now < self.next_standby_at:
            return
        if not isinstance(self.launcher, BatchLauncher):
            self.standbys.append(self.spawn(self.new_token(), now))

    def spawn(
        self,
        token: str,
        now: float,
        directory: AttemptDir | None = None,
        avoid: Avoid = NOBODY,
        ending_s: float = 0.0,
    ) -> Worker:
        """Start a worker. directory: of its attempt; None: it gets its task later. avoid: nodes. ending_s: see `Order`.

        Raises LonghaulError if the system refuses.
        """
        log = self.run.standby_logs / f"{token}.log" if directory is None else directory.log
        handle = Handle(self.launcher_name, self.owner, token)
        environment = clean_environment(self.owner, token, self.kind, self._needs)
        handles.write(self.run, handle)  # if we die during the start, the next master knows the launcher
        try:
            started = self.launcher.start(
                Order(handle, COMMAND, environment, log, directory, avoid.failed, avoid.slow, ending_s)
            )
        except OSError as error:
            raise no_worker(error, log) from error
        crash_point("worker.launched")
        worker = Worker(self.launcher, started, log, now)
        try:
            handles.write(self.run, worker.handle)
        except LonghaulError:
            worker.end()
            worker.close()
            raise
        return worker

    def take_standby(self) -> Worker | None:
        """Take the first standby that is alive and not being killed, or None. Discards those before it."""
        while self.standbys:
            worker = self.standbys.pop(0)
            if not worker.reap() and worker.kill is None:
                return worker
            self.discard(worker)
        return None

    def take_prepared(self, is_wanted: Callable[[Prepared], bool]) -> Prepared | None:
        """Take the attempt that was started ahead if it is wanted and alive; otherwise discard it and return None."""
        found = self.prepared
        if found is None:
            return None
        if found.worker.reap() or found.worker.kill is not None or not is_wanted(found):
            self.dismiss_prepared()
            return None
        self.prepared = None
        return found

    def dismiss_prepared(self) -> None:
        """Kill the worker that was started ahead, and remove its attempt: its rollouts stay, for whoever repeats it."""
        if self.prepared is None:
            return
        prepared, self.prepared = self.prepared, None
        prepared.worker.end()
        self.discard(prepared.worker)
        shutil.rmtree(prepared.directory.path, ignore_errors=True)

    @property
    def loading(self) -> Prepared | None:
        """The attempt that was started ahead, while its worker waits for its head."""
        return self.prepared if self.prepared is not None and self.prepared.waits_for_head else None

    def prepare(self, prepared: Prepared, now: float) -> None:
        """Let the worker begin its attempt: load the model, or also train without a checkpoint."""
        self.prepared = prepared
        message = "load" if prepared.waits_for_head else "prepare"
        self.assign(prepared.worker, prepared.spec, prepared.directory, now, message)
        prepared.worker.watch = replace(prepared.worker.watch, is_held=True)

    def name_head(self, spec: WorkerSpec) -> None:
        """Let the worker that loads ahead train, without a checkpoint. spec: its own, with its head, as on disk."""
        assert self.loading is not None
        self.prepared = replace(self.loading, spec=spec, waits_for_head=False)
        self.prepared.worker.send(Message(type="prepare", path=str(self.prepared.directory.spec), step=spec.first_step))

    def release(self, prepared: Prepared, now: float) -> None:
        """Let it go on."""
        worker = prepared.worker
        worker.watch = replace(worker.watch, is_held=False, progress_at=now)
        worker.send(Message(type="start", path=str(prepared.directory.spec), step=prepared.spec.first_step))

    def assign(
        self, worker: Worker, spec: WorkerSpec, directory: AttemptDir, now: float, message: str = "start"
    ) -> None:
        """Move the worker's log into its attempt's directory, and tell it to start."""
        if worker.log != directory.log:
            with durable.explained("cannot move the worker's log to", directory.log), suppress(FileNotFoundError):
                worker.log.replace(directory.log)
                worker.log = directory.log
        worker.watch = replace(worker.watch, started_at=now, progress_at=now, first_step=spec.first_step)
        worker.send(Message(type=message, path=str(directory.spec), step=spec.first_step))

    def discard(self, worker: Worker) -> None:
        """Close a worker; forget its handle if it has ended; delete its log if it never had an attempt."""
        worker.close()
        if worker.exit_code is not None:
            handles.forget(self.run, worker.token)
        if worker.log.parent == self.run.standby_logs:
            worker.log.unlink(missing_ok=True)

    def reap_standbys(self, next_at: float) -> list[Worker]:
        """Discard and return those that have ended. next_at: earliest time to start another then (monotonic)."""
        ended = [one for one in self.standbys if one.reap()]
        for one in ended:
            self.standbys.remove(one)
            self.discard(one)
            self.next_standby_at = next_at
        return ended

    def dismiss_standbys(self) -> None:
        """Kill all standbys at once; they have no work to lose."""
        while self.standbys:
            worker = self.standbys.pop()
            worker.end()
            self.discard(worker)


LIMITS = {
    errno.EMFILE: "ulimit -n   (open files of this process)",
    errno.ENFILE: "sysctl fs.file-max   (open files of this machine)",
    errno.EAGAIN: "ulimit -u   (processes of this user)",
    errno.ENOMEM: "free -h   (memory of this machine)",
}
"""errno of a refused start -> the command that shows the limit."""


def no_worker(error: OSError, log: Path) -> LonghaulError:
    """The error to raise when the system refuses to start a process."""
    kept = "the head and everything that was committed"
    return durable.os_failure(error, "cannot start a worker with the log", log, kept) or LonghaulError(
        f"cannot start a worker: {error.strerror}",
        kept=kept,
        next_command=LIMITS.get(error.errno or 0, "dmesg | tail"),
        exit_code=ExitCode.INTERNAL,
    )


def rotate_log(log: Path, limit: int = LOG_BYTES_KEPT) -> None:
    """Copy the last `limit` bytes aside and truncate the log. The writer uses O_APPEND, so it continues at the new
    end."""
    with suppress(OSError):
        if log.stat().st_size <= 2 * limit:
            return
        with log.open("rb+") as file:
            file.seek(-limit, os.SEEK_END)
            tail = file.read()
            log.with_suffix(".log.1").write_bytes(tail)
            file.truncate(0)


def reap_strangers(known: Iterable[int], on_reaped: Callable[[int], None] = lambda pid: None) -> None:
    """Reap orphans that we inherited as subreaper. `Worker.reap` reaps our own workers."""
    ours = set(known)
    with suppress(ChildProcessError):
        while (info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if info.si_pid in ours:
                return  # waitid reports it first; reap the strangers behind it next time
            os.waitpid(info.si_pid, 0)
            on_reaped(info.si_pid)


def oom_kills() -> int:
    """Number of kills by the kernel's OOM killer so far, in our cgroup plus on the whole machine."""
    total = 0
    for file in (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat")):
        with suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    total += int(value)
    return total


def may_wait_besides() -> bool:
    """Whether there is memory to spare for a second standby. Without it, a cycle whose validation is short waits for
    the imports of its worker."""
    return ram_available() >= SPARE_BYTES


def standby_is_due(active: Active) -> bool:
    """Whether to start standbys. While training only after a step, because both would load their libraries at once.

    They take the validation and the next cycle, and the rest of this one if the active worker dies.
    """
    if isinstance(active.action, Validate) or active.action.phase == "seed":
        return True
    return active.worker.watch.steps_done > 0
