"""The trainer's side of the user's reward functions: sends calls, enforces their time limit, starts the process anew.

One thread owns the process and the socket; `submit` only hands it calls. A call fails for what it did itself:

- Over its time limit: the process is killed. If it still answered, every call over the limit was late by itself. If it
  did not, one call holds the interpreter lock (a regular expression that backtracks does): the one whose thread used
  the most processor time. If a coroutine blocks the event loop, it is that one. All others are called again.
- The process ended by itself (os._exit, a crash in C, the kernel out of memory): the calls that were running are called
  again, one at a time. One that ends it alone is to blame.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import msgspec

from profiles.errors import ExitCode, LonghaulError
from profiles.reward_files import file_of, hash_of
from workers.rewards.functions.kept import Failure, Kept
from workers.rewards.functions.protocol import (
    Ask,
    Began,
    Broke,
    Call,
    Ended,
    Ping,
    Pong,
    Ready,
    Refused,
    Reply,
    Setup,
    Signature,
    replies,
)
from workers.rewards.functions.watched import Process, drain

LOG = "reward-functions.log"
IMPORT_S = 300.0
"""Time limit for importing the files: one may load a model."""
PONG_S = 1.0
"""A process that does not answer for so long is held by one of its calls."""
MOST_ENDS = 3
"""How often in a row the process may end by itself when no call can be blamed."""
QUIET_S = 30.0
"""In addition to a call's time limit: how long none of the calls that were sent may begin."""
MOST_SENT = 256
"""Calls that the process has at one time; more would only fill its memory."""
HOST = "workers.rewards.functions.caller"


class Limits(Protocol):
    """As [grpo.reward] of a profile."""

    @property
    def timeout_s(self) -> float: ...
    @property
    def memory_gib(self) -> float: ...
    @property
    def threads(self) -> int: ...


class Answer(msgspec.Struct, frozen=True):
    """outcomes: for each rollout of the call its named values (the function's own name is the reward), or why there is
    none. seconds: how long the call took; 0 if it never came back."""

    outcomes: list[Mapping[str, float] | Failure]
    seconds: float = 0.0


@dataclass(eq=False)
class _Job:
    key: int
    call: Call
    future: Future[Answer] = field(default_factory=Future)
    is_suspect: bool = False
    """It ran when the process ended by itself, so it is called again alone."""
    began_at: float = 0.0
    """0: not yet."""
    thread: int = 0
    cpu_s: float = 0.0


def to_blame(late: Collection[int], pong: int | None, cpu_s: Mapping[int, float]) -> set[int]:
    """Which calls are over their time limit by their own fault. (pure)

    late: keys over the limit. pong: key of the coroutine that holds the event loop, -1 for none, None: the process did
    not answer. cpu_s: processor time of each running call.
    """
    if pong is None and cpu_s:
        return {max(cpu_s, key=lambda key: cpu_s[key])}
    if pong is not None and pong in late:
        return {pong}
    return set(late)


def cpu_s_of(pid: int, thread: int) -> float | None:
    """Processor seconds of a thread; None if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return None


class FunctionRunner:
    """A context manager: the process of the functions, and nothing that they started, outlives it.

    hashes: name -> sha256 of its file. signatures: of each function, once it is entered.
    """

    def __init__(
        self,
        names: Sequence[str],
        limits: Limits,
        folder: Path,
        *,
        cwd: Path | None = None,
        import_s: float = IMPORT_S,
    ) -> None:
        """folder: of the attempt, for the log and failed calls. cwd: relative files are meant from here (the working
        directory). Raises LonghaulError (INPUT) for a name or file that is not there."""
        self.names, self._reward, self._folder = tuple(names), limits, folder
        self._cwd, self._import_s = cwd or Path.cwd(), import_s
        self._files = [str(file_of(name, self._cwd)) for name in names]
        self.hashes = {name: hash_of(name, self._cwd) for name in names}
        self.signatures: tuple[Signature, ...] = ()
        self._kept = Kept(folder)
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._submitted: deque[_Job] = deque()
        self._is_closed = self._is_over = False
        self._broken: LonghaulError | None = None
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._ready: Future[tuple[Signature, ...]] = Future()
        self._thread = threading.Thread(target=self._run, name="reward functions", daemon=True)
        # Of the thread alone:
        self._waiting: deque[_Job] = deque()
        self._sent: dict[int, _Job] = {}
        self._ends = 0

    def __enter__(self) -> Self:
        """Import the files. Raises LonghaulError (INPUT) if that fails, or a function has neither form."""
        self._thread.start()
        try:
            self.signatures = self._ready.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and everything below it. Calls without an answer raise CancelledError."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._wake()
            self._thread.join()
            os.close(self._wake_r)
            os.close(self._wake_w)

    def check_columns(self, columns: Collection[str]) -> None:
        """Raises LonghaulError (INPUT) for a parameter without a default that no column has.

        columns: every name that some row has.
        """
        known = {*columns, "answer"}
        for name, signature in zip(self.names, self.signatures, strict=True):
            if missing := [one for one in signature.required if one not in known]:
                there = ", ".join(sorted(known)) or "none"
                raise LonghaulError(
                    f"the reward {name} requires `{missing[0]}`, and the data has no such column (it has {there})",
                    kept="everything; nothing was started",
                    next_command=f"give `{missing[0]}` a default in the function, or say which column it is: "
                    f"--set data.columns.{missing[0]}=COLUMN",
                    exit_code=ExitCode.INPUT,
                )

    def submit(self, calls: Sequence[Call]) -> list[Future[Answer]]:
        """Begin the calls; returns at once. A function of one rollout takes calls of one.

        A future raises LonghaulError if the functions cannot be imported any more, CancelledError after `close`.
        """
        jobs = [_Job(next(self._keys), call) for call in calls]
        for job in jobs:
            job.future.set_running_or_notify_cancel()  # a caller that gives up does not disturb the thread
        with self._lock:
            if self._is_over:
                raise self._broken or RuntimeError("the functions have ended")
            self._submitted.extend(jobs)
        self._wake()
        return [job.future for job in jobs]

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b".")

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        process: Process[Reply] | None = None
        try:
            process = self._start()
            while not self._is_closed:
                self._take_submitted()
                if self._broken is None:
                    process = self._turn(process)
                else:
                    process.end()
                    self._refuse_all(self._broken)
                    self._wait_for_wake()
        except BaseException as error:  # a bug of ours, or no process can be started: nobody may wait for ever
            self._broken = self._internal(error)
        finally:
            if process is not None:
                process.end()
            with self._lock:
                self._is_over = True
            self._take_submitted()
            if self._broken is not None:
                self._refuse_all(self._broken)
            for job in [*self._waiting, *self._sent.values()]:
                job.future.set_exception(CancelledError())
            if not self._ready.done():
                self._ready.set_exception(CancelledError())

    def _turn(self, process: Process[Reply]) -> Process[Reply]:
        """Send, wait, hear, and judge what is late. Returns the process, a new one if that had to be."""
        self._send(process)
        heard = process.wait(self._wake_r, self._next_deadline(process))
        for reply in heard:
            self._hear(process, reply)
        if process.is_gone:
            return self._after_its_end(process)
        return self._after_deadlines(process)

    def _take_submitted(self) -> None:
        with self._lock:
            self._waiting.extend(self._submitted)
            self._submitted.clear()

    def _wait_for_wake(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_r, selectors.EVENT_READ)
            selector.select(1.0)
        drain(self._wake_r)

    def _start(self) -> Process[Reply]:
        setup = Setup(list(self.names), self._files, self._reward.threads, int(self._reward.memory_gib * 2**30))
        return Process(HOST, setup, replies.decode, self._folder / LOG, self._cwd)

    def _send(self, process: Process[Reply]) -> None:
        """Suspects go alone."""
        while process.is_ready and self._waiting and len(self._sent) < MOST_SENT:
            job = self._waiting[0]
            if self._sent and (job.is_suspect or any(one.is_suspect for one in self._sent.values())):
                return
            self._waiting.popleft()
            try:
                process.send(Ask(job.key, job.call))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                self._fail(job, f"it cannot be given this row: {type(error).__name__}: {error}"[:300])
                continue
            job.began_at = 0.0
            self._sent[job.key] = job

    def _hear(self, process: Process[Reply], reply: Reply) -> None:
        match reply:
            case Ready(pid=pid, signatures=found):
                process.is_ready, process.caller_pid = True, pid
                if not self._ready.done():
                    self._ready.set_result(tuple(found))
            case Refused(name=name, why=why):
                self._give_up(_refused(name, why))
            case Began(key=key, thread=thread, cpu_s=cpu_s) if key in self._sent:
                job = self._sent[key]
                job.began_at, job.thread, job.cpu_s = time.monotonic(), thread, cpu_s
            case Ended(key=key, results=results, seconds=seconds) if key in self._sent:
                self._ends = 0
                job = self._sent.pop(key)
                outcomes: list[Mapping[str, float] | Failure] = [
                    self._failure(job, one) if isinstance(one, str) else one for one in results
                ]
                job.future.set_result(Answer(outcomes, seconds))
            case Broke(key=key, why=why, trace=trace, seconds=seconds) if key in self._sent:
                self._fail(self._sent.pop(key), why, trace, seconds)
            case Pong(running=running):
                process.pong = running

    def _next_deadline(self, process: Process[Reply]) -> float:
        """When something is late, in monotonic seconds."""
        if not process.is_ready:
            return process.started_at + self._import_s
        if process.pinged_at:
            return process.pinged_at + PONG_S
        running = [job.began_at for job in self._sent.values() if job.began_at]
        if running:
            return min(running) + self._reward.timeout_s
        return process.heard_at + self._reward.timeout_s + QUIET_S if self._sent else float("inf")

    def _after_deadlines(self, process: Process[Reply]) -> Process[Reply]:
        now, limit = time.monotonic(), self._reward.timeout_s
        if not process.is_ready:
            if now >= process.started_at + self._import_s:
                why = f"importing its file took longer than {self._import_s:g} s"
                self._give_up(_refused(", ".join(self.names), why))
            return process
        late = [key for key, job in self._sent.items() if job.began_at and now >= job.began_at + limit]
        if late and not process.pinged_at:
            process.pinged_at, process.pong = now, None
            process.send(Ping())
            return process
        if process.pinged_at:
            if not late:  # it came back meanwhile
                process.pinged_at = 0.0
                return process
            if process.pong is None and now < process.pinged_at + PONG_S:
                return process
            guilty = to_blame(late, process.pong, self._cpu_of_running(process.caller_pid))
        elif self._sent and not late and now >= self._next_deadline(process):
            guilty = set(self._sent)  # a thread that no call knows holds the process
        else:
            return process
        process.end()
        for key in guilty & set(self._sent):
            self._fail(self._sent.pop(key), f"it took longer than {limit:g} s (grpo.reward.timeout_s)", "", limit)
        return self._again(process, ())

    def _cpu_of_running(self, pid: int) -> dict[int, float]:
        """Processor seconds of each call that runs."""
        found = {}
        for key, job in self._sent.items():
            if job.began_at and (used := cpu_s_of(pid, job.thread)) is not None:
                found[key] = used - job.cpu_s
        return found

    def _after_its_end(self, process: Process[Reply]) -> Process[Reply]:
        """It ended by itself."""
        how = process.end()
        if self._broken is not None:
            return process
        if not process.is_ready:
            self._give_up(_refused(", ".join(self.names), f"the process {how} while it imported the file"))
            return process
        running = [job for job in self._sent.values() if job.began_at]
        self._ends += 1
        # Only of a call that had the process for itself: another one may have ended just before a crash of its making.
        if len(running) == len(self._sent) == 1:
            (job,) = running
            del self._sent[job.key]
            self._fail(job, f"its process {how}: os._exit, a crash in C, or out of memory")
            running = []
        if self._ends > MOST_ENDS:
            why = f"the process {how}, {MOST_ENDS} times in a row and without a call to blame"
            self._give_up(_refused(", ".join(self.names), why))
        return self._again(process, running)

    def _again(self, process: Process[Reply], suspects: Collection[_Job]) -> Process[Reply]:
        """A new process, which gets the calls that have no answer. suspects go first, and alone."""
        for job in suspects:
            job.is_suspect = True
        self._waiting.extendleft(sorted(self._sent.values(), key=lambda job: job.is_suspect))
        self._sent.clear()
        for name in self.names:
            try:
                is_same = hash_of(name, self._cwd) == self.hashes[name]
            except LonghaulError:
                is_same = False
            if not is_same:
                self._give_up(_refused(name, "its file changed while the functions ran; resume to use the new one"))
        return process if self._broken is not None else self._start()

    def _give_up(self, error: LonghaulError) -> None:
        self._broken = error
        if not self._ready.done():
            self._ready.set_exception(error)

    def _refuse_all(self, error: LonghaulError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
        for job in [*self._waiting, *self._sent.values()]:
            job.future.set_exception(error)
        self._waiting.clear()
        self._sent.clear()

    def _fail(self, job: _Job, why: str, trace: str = "", seconds: float = 0.0) -> None:
        self._ends = 0
        failure = self._failure(job, why, trace)
        job.future.set_result(Answer([failure] * len(job.call.rollouts), seconds))

    def _failure(self, job: _Job, why: str, trace: str = "") -> Failure:
        return self._kept.keep(self.names[job.call.function], job.call.row, job.call, why, trace, job.call.source)

    def _internal(self, error: BaseException) -> LonghaulError:
        return LonghaulError(
            f"the process of the reward functions cannot go on: {type(error).__name__}: {error}"[:500],
            kept="the head, unchanged",
            next_command="python -m orchestrator doctor",
            exit_code=ExitCode.INTERNAL,
        )


def _refused(name: str, why: str) -> LonghaulError:
    return LonghaulError(
        f"the reward {name} cannot be used: {why}",
        kept="everything; nothing was trained with it",
        next_command=f"python -m orchestrator rewards test {name.partition(', ')[0]}   once it is corrected",
        exit_code=ExitCode.INPUT,
    )
