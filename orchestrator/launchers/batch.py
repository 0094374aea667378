"""Runs workers as jobs of a scheduler. A job outlives its master, and a new master finds it by its token.

One thread queries the scheduler for all jobs of the run at once, so a slow scheduler delays nothing else. What differs
between schedulers is behind `Scheduler`: `slurm` and `ray` implement it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from orchestrator.launchers.job_end import OF_A_PEER, Cause, End, Left, Seen, has_ended, meaning, waits_for
from orchestrator.launchers.launcher import Handle, Life, Order, Started
from orchestrator.launchers.relay import Relay
from profiles.errors import ExitCode, LonghaulError
from state.layout import AttemptDir
from workers.contract import CONTROL_FD_VARIABLE, LIFELINE_FD_VARIABLE, MAILBOX_VARIABLE, Result

log = logging.getLogger("batch")

PATIENCE_VARIABLE = "LONGHAUL_SCHEDULER_PATIENCE_S"
"""For tests: another PATIENCE_S."""
PATIENCE_S = float(os.environ.get(PATIENCE_VARIABLE) or 20)
"""Timeout of one call to a scheduler."""
TRIES = 3
SOON_S = 0.5
"""Poll interval while a job is about to start or end."""
NEW_S = 30.0
"""A job still queued after this time waits for other jobs, and is polled less often."""
END_S = 6 * PATIENCE_S
"""How long to wait until a cancelled job is gone; Slurm's KillWait is 30 s by default. After that, a scheduler that
does not answer no longer keeps the run from going on."""

OF_THIS_HOST = {
    CONTROL_FD_VARIABLE,
    LIFELINE_FD_VARIABLE,
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HOSTNAME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
}
"""Variables that a job must take from its own node, not from this host."""

SILENT_S = 15.0
"""A worker sends a heartbeat every 2 s. After so long without one, this host asks the daemons of its nodes: Slurm may
take minutes to notice a dead node (SlurmdTimeout)."""


class Unanswered(Exception):
    """The scheduler did not answer, or its answer was not understood. Says nothing about any job."""


class Refused(Unanswered):
    """The scheduler answered that it does not do what was asked. A retry cannot help."""


class Scheduler(Protocol):
    """One scheduler, as `Batch` uses it. Every method may take PATIENCE_S, and raises Unanswered if there is no
    answer."""

    name: str
    """As users know it."""
    check: str
    """Command that shows whether it answers."""

    def prepare(self, order: Order, directory: AttemptDir) -> Callable[[], str]:
        """Write what the job needs. Returns a function that submits it once and returns the job's id.

        Raises LonghaulError if the job cannot be submitted.
        """

    def find(self, token: str) -> str:
        """Id of the job that was submitted with that token; empty: there is none."""

    def listed(self, jobs: Sequence[str]) -> Mapping[str, Seen]:
        """These jobs, as far as one cheap query shows them."""

    def final(self, job: str) -> Seen:
        """A job that is not listed: it may have ended, and may be forgotten."""

    def never_starts(self, job: str, seen: Seen) -> bool:
        """Whether a job waits for what the cluster never has."""

    def signal(self, job: str, number: int) -> None:
        """KILL ends the job; any other signal goes to its workers."""

    def failed(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Those of the nodes that are known to be out of order. Never raises."""

    def silent(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Those of the nodes that do not answer this host, whatever the scheduler thinks. Never raises."""


@dataclass
class Job:
    """The state of a job. Written by the polling thread, read by the master."""

    handle: Handle
    directory: AttemptDir
    relay: Relay
    ended: int
    """Write end of a pipe; closing it signals that the job has ended."""
    life: Life = field(default_factory=lambda: Life(waits="submitted"))
    killed_at: float | None = None
    """When this master first asked for its end."""
    asked_at: float = 0.0
    """When it last did."""
    nodes: tuple[str, ...] = ()
    """Nodes that it runs on."""
    failed: tuple[str, ...] = ()
    """Nodes that failed under it before the scheduler requeued it."""
    submitted_at: float = field(default_factory=time.monotonic)
    waited_at: float = field(default_factory=time.monotonic)
    """When it was last seen in the queue."""


class Batch:
    """A `BatchLauncher`. Everything it needs to know about a job is in the job's directory or in the scheduler."""

    def __init__(self, scheduler: Scheduler, poll_s: float) -> None:
        self.scheduler = scheduler
        self._poll_s = poll_s
        self._jobs: dict[str, Job] = {}
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """Calls for the thread to make: cancellations and signals."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed_polls = 0

    # --- starting ------------------------------------------------------------------------------------------------

    def start(self, order: Order) -> Started:
        """Submit an attempt's job.

        Raises LonghaulError: CLUSTER if the scheduler refuses the job or does not answer, NODE if too many nodes have
        failed.
        """
        directory = order.directory
        assert directory is not None, "a job has its task from birth"
        job = submitted(self.scheduler, self.scheduler.prepare(order, directory), order.handle.token)
        digest = hashlib.sha256(directory.spec.read_bytes()).hexdigest()
        handle = replace(order.handle, job=job, spec_sha256=digest)
        return self._look_after(handle, directory, is_new=True)

    def _look_after(self, handle: Handle, directory: AttemptDir, *, is_new: bool) -> Started:
        relay = Relay(directory, self._wake.set, is_new=is_new)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._jobs[handle.token] = Job(handle, directory, relay, writer)
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask, name="scheduler", daemon=True)
            self._thread.start()
        self._wake.set()
        return Started(handle, control=relay.control, lifeline=None, ended=reader)

    # --- submitted jobs ------------------------------------------------------------------------------------------

    def poll(self, handle: Handle) -> Life:
        job = self._jobs.get(handle.token)
        return job.life if job is not None else Life(exit_code=-signal.SIGKILL)

    def nodes_of(self, handle: Handle) -> tuple[str, ...]:
        """Nodes that the job of a handle runs on, or ran on, as far as it was seen."""
        job = self._jobs.get(handle.token)
        return job.nodes if job is not None else ()

    def signal(self, handle: Handle, number: int) -> None:
        """Send a signal: KILL ends the job, any other signal goes to its workers."""
        name = handle.job or self._named(handle)
        if not name:
            return
        if number == signal.SIGKILL and (job := self._jobs.get(handle.token)) is not None:
            job.asked_at = time.monotonic()
            job.killed_at = job.killed_at or job.asked_at
        self._run_soon(partial(self.scheduler.signal, name, number))

    def _named(self, handle: Handle) -> str:
        with suppress(Unanswered):
            return self.scheduler.find(handle.token)
        return ""

    def _run_soon(self, errand: Callable[[], None]) -> None:
        if self._thread is None:  # this master has no job of its own and only cleans up
            with suppress(Unanswered):
                errand()
            return
        self._errands.put(errand)
        self._wake.set()

    def wait(self, handle: Handle, seconds: float | None = None) -> Life:
        until = time.monotonic() + (END_S if seconds is None else seconds)
        while True:
            job = self._jobs.get(handle.token)
            life = job.life if job is not None else self._life_of_stranger(handle)
            if life.exit_code is not None or time.monotonic() >= until:
                return life
            time.sleep(0.05 if job is not None else SOON_S)

    def _life_of_stranger(self, handle: Handle) -> Life:
        with suppress(Unanswered):
            return Life(exit_code=-signal.SIGKILL) if has_ended(self.scheduler.final(handle.job)) else Life()
        return Life()

    def adopt(self, owner: str, handles: Sequence[Handle]) -> list[Handle]:
        """The handles whose jobs live. Raises LonghaulError (CLUSTER) if the scheduler does not answer."""
        found = []
        for handle in handles:
            try:
                name = handle.job or self.scheduler.find(handle.token)
                if name and not has_ended(self.scheduler.final(name)):
                    found.append(replace(handle, job=name))
            except Unanswered as error:
                raise unanswered(self.scheduler, str(error)) from error
        return found

    def attach(self, handle: Handle, directory: AttemptDir) -> Started | None:
        if found := self.adopt(handle.owner, [handle]):
            return self._look_after(found[0], directory, is_new=False)
        fence(directory)  # a submission that the scheduler has not yet heard may still become a job
        return None

    # --- polling the scheduler -----------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Body of the thread."""
        while True:
            pause = self._poll_s
            try:
                pause = self._turn()
            except Exception:  # unexpected output must not end this thread: the master would hang
                log.exception("the answers of %s were not understood", self.scheduler.name)
            self._wake.wait(pause)
            self._wake.clear()

    def _turn(self) -> float:
        """Run errands, query all jobs at once, then find out how each missing job ended. Returns seconds to wait."""
        while not self._errands.empty():
            with suppress(Unanswered):
                self._errands.get()()
        alive = [job for job in self._jobs.values() if job.life.exit_code is None]
        for job in alive:
            if job.killed_at is not None and time.monotonic() - job.asked_at > PATIENCE_S:
                self.signal(job.handle, signal.SIGKILL)  # the scheduler may not have heard it
        if alive:
            self._look_at(alive)
        return self._pause(alive)

    def _pause(self, alive: Sequence[Job]) -> float:
        """Seconds until the next poll: short if a job is about to end or was just submitted."""
        now = time.monotonic()
        for job in alive:
            is_new = bool(job.life.waits) and now - job.submitted_at < NEW_S
            if is_new or job.killed_at is not None or job.directory.job_end.exists() or job.directory.result.exists():
                return SOON_S
        return self._poll_s

    def _look_at(self, jobs: Sequence[Job]) -> None:
        try:
            listed = self.scheduler.listed([job.handle.job for job in jobs])
            self._failed_polls = 0
        except Unanswered as error:
            self._failed_polls += 1
            if self._failed_polls >= TRIES:  # unknown does not mean dead: rely on heartbeats
                text = f"{self.scheduler.name} does not answer: {error}"
                for job in jobs:
                    job.life = dataclasses.replace(job.life, waits=text if job.life.waits else "", text=text)
                    if job.killed_at is not None and time.monotonic() - job.killed_at > END_S:
                        self._end(job, Seen(""))
            return
        for job in jobs:
            with suppress(Unanswered):
                seen = listed.get(job.handle.job) or self.scheduler.final(job.handle.job)
                if has_ended(seen):
                    self._end(job, seen)
                    continue
                if self.scheduler.never_starts(job.handle.job, seen):
                    self._give_up(job, seen)
                    continue
                if waits_for(seen) and job.nodes:  # it was running and has been requeued
                    job.failed = (*job.failed, *self.scheduler.failed(job.nodes))
                if seen.state != "COMPLETING":  # which leaves a node out of the list once that has failed
                    job.nodes = seen.nodes
                if waits_for(seen):
                    job.waited_at = time.monotonic()
                elif lost := self._lost_in_silence(job):
                    self._abandon(job, lost)
                    continue
                text = f"lost {', '.join(job.failed)}" if job.failed else ""
                job.life = Life(waits=waits_for(seen), nodes=job.failed, text=text)

    def _lost_in_silence(self, job: Job) -> tuple[str, ...]:
        """Nodes of a running job that are dead, whatever the scheduler thinks: neither worker nor daemon answers."""
        is_silent = time.monotonic() - max(job.relay.heard_at, job.waited_at) >= SILENT_S
        return self.scheduler.silent(job.nodes) if is_silent and job.nodes else ()

    def _abandon(self, job: Job, lost: tuple[str, ...]) -> None:
        """Count the job as ended, since the scheduler would take minutes. It must not start again when the scheduler
        notices, and no task of it may go on: each ends when it sees a later claim than its own."""
        with suppress(Unanswered):
            self.scheduler.signal(job.handle.job, signal.SIGKILL)
        seen = Seen("NODE_FAIL", nodes=job.nodes, failed_nodes=lost)
        end = meaning(left_in(job.directory), seen, is_killed=job.killed_at is not None)
        fence(job.directory)
        self._close(job, end)

    def _give_up(self, job: Job, seen: Seen) -> None:
        """End a job that would wait for ever."""
        with suppress(Unanswered):
            self.scheduler.signal(job.handle.job, signal.SIGKILL)
        fence(job.directory)
        text = f"{self.scheduler.name} took the job and can never start it: {seen.reason}"
        self._close(job, End(ExitCode.CLUSTER, Cause.IMPOSSIBLE, text=text))

    def _end(self, job: Job, seen: Seen) -> None:
        left = left_in(job.directory)
        # A job that was put back into the queue may end on other nodes with the result of its first start.
        nodes = tuple(dict.fromkeys((*job.nodes, *seen.nodes)))
        job.nodes = seen.nodes or job.nodes
        if left.result is None or left.result.exit_code in OF_A_PEER:
            failed = dict.fromkeys((*job.failed, *self.scheduler.failed(nodes)))
            seen = dataclasses.replace(seen, failed_nodes=tuple(failed))
        end = meaning(left, seen, is_killed=job.killed_at is not None)
        if left.result is None:
            fence(job.directory)
        self._close(job, end)

    def _close(self, job: Job, end: End) -> None:
        job.life = Life(end.exit_code, cause=end.cause, nodes=end.nodes, text=end.text)
        with suppress(OSError):
            os.close(job.ended)


def submitted(scheduler: Scheduler, submit: Callable[[], str], token: str) -> str:
    """Submit and return the job id. After a timeout the job may be queued all the same, so look it up by token."""
    said, left = "", "if the job was submitted after all, the next command takes it up"
    for tried in range(1, TRIES + 1):
        try:
            return submit()
        except Unanswered as error:
            said = str(error)
            if isinstance(error, Refused):
                left = "no job was submitted"
                break
        time.sleep(random.uniform(0.5, 1.5) * tried)
        with suppress(Unanswered):
            if found := scheduler.find(token):
                return found
    raise LonghaulError(
        f"{scheduler.name} does not take the job: {said}",
        kept=f"the head and everything that was committed; {left}",
        next_command=f"{scheduler.check}; correct [launch], then repeat the command",
        exit_code=ExitCode.CLUSTER,
    )


def unanswered(scheduler: Scheduler, said: str) -> LonghaulError:
    return LonghaulError(
        f"{scheduler.name} does not answer, and a job of this run may be at work: {said}",
        kept="the run as it is; nothing was started",
        next_command=f"{scheduler.check}; once that answers, repeat the command",
        exit_code=ExitCode.CLUSTER,
    )


def of_a_job(environment: Mapping[str, str], directory: AttemptDir, *, without: str) -> dict[str, str]:
    """The variables to add to a job's own. without: prefix of those that its scheduler sets."""
    return for_nodes(environment, without=without) | {MAILBOX_VARIABLE: str(directory.path.resolve())}


def for_nodes(environment: Mapping[str, str], *, without: str) -> dict[str, str]:
    """The variables that mean the same on every node. without: prefix of those that the scheduler sets."""
    return {
        name: value for name, value in environment.items() if name not in OF_THIS_HOST and not name.startswith(without)
    }


def fence(directory: AttemptDir) -> None:
    """Claim the attempt against all copies of its worker: one that lives ends, and one that still starts does nothing.
    For an attempt whose job has ended or was lost."""
    starts = [int(path.suffix[1:]) for path in directory.path.glob("claim.*") if path.suffix[1:].isdigit()]
    with suppress(OSError):
        directory.claim(max(starts, default=0) + 1).touch(mode=0o600)


def left_in(directory: AttemptDir) -> Left:
    """Read what a job left in its attempt's directory."""
    result = None
    with suppress(OSError, msgspec.MsgspecError):
        result = msgspec.json.decode(directory.result.read_bytes(), type=Result)
    return Left(result, is_claimed=any(directory.path.glob("claim.*")))
