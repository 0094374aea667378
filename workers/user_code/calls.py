"""The trainer's side of the user's code: sends calls, enforces their time limit, starts the process anew.

One thread owns the process and the socket; `_begin` only hands it calls. A call fails for what it did itself:

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
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.reward_files import hash_of
from workers.user_code.frames import Began, Broke, Ping, Pong, Refused
from workers.user_code.kept import Kept
from workers.user_code.process import Process, drain

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
Call = TypeVar("Call")
Answer = TypeVar("Answer")


class Limits(Protocol):
    """As [grpo.reward] of a profile."""

    @property
    def timeout_s(self) -> float: ...
    @property
    def memory_gib(self) -> float: ...
    @property
    def threads(self) -> int: ...


@dataclass(eq=False)
class Job(Generic[Call, Answer]):
    """A call, and what the thread knows of it. began_at: monotonic seconds; 0: it has not begun."""

    key: int
    call: Call
    future: Future[Answer] = field(default_factory=Future)
    is_suspect: bool = False
    """It ran when the process ended by itself, so it is called again alone."""
    began_at: float = 0.0
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


class CallRunner(ABC, Generic[Call, Answer]):
    """A context manager: the process, and nothing that it started, outlives it.

    hashes: name -> sha256 of its file.
    """

    host: ClassVar[str]
    """Module whose `main` serves the calls."""
    log: ClassVar[str]
    """Name of the log in the attempt's folder."""
    what: ClassVar[str]
    """The user's code, in words."""
    replies: ClassVar[msgspec.msgpack.Decoder[Any]]
    """Decodes what the process says: replies of its own kind, and those of frames.py."""

    def __init__(self, names: Sequence[str], limits: Limits, folder: Path, cwd: Path | None, import_s: float) -> None:
        """names: of the user's files. folder: of the attempt, for the log and failed calls. cwd: relative files are
        meant from here (the working directory). Raises LonghaulError (INPUT) for a name or file that is not there."""
        self._reward, self._folder = limits, folder
        self._cwd, self._import_s = cwd or Path.cwd(), import_s
        self.hashes = {name: hash_of(name, self._cwd) for name in names}
        self._kept = Kept(folder)
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._submitted: deque[Job[Call, Answer]] = deque()
        self._is_closed = self._is_over = False
        self._broken: LonghaulError | None = None
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=self.what, daemon=True)
        # Of the thread alone:
        self._waiting: deque[Job[Call, Answer]] = deque()
        self._sent: dict[int, Job[Call, Answer]] = {}
        self._started = self._ends = 0

    # --- what each kind of call says for itself, on the thread ------------------------------------------------------

    @abstractmethod
    def _setup(self) -> Struct:
        """The first message to a process."""

    @abstractmethod
    def _request(self, job: Job[Call, Answer]) -> Struct:
        """The message of a call. Raises what `frame` raises; LookupError if it can have no answer any more."""

    @abstractmethod
    def _heard(self, reply: Any) -> int | None:
        """Take a reply that only this kind of process sends: an answer, or that it is ready. Then returns its id."""

    @abstractmethod
    def _failed(self, job: Job[Call, Answer], why: str, trace: str, seconds: float) -> None:
        """Give a call its end without an answer. why: a clause without a subject."""

    @abstractmethod
    def _refused(self, name: str, why: str) -> LonghaulError:
        """The user's code cannot be used (any more). name: which file; empty: all."""

    # --- for every thread --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Import the user's code. Raises LonghaulError (INPUT) if that fails, or it is not what it should be."""
        self._thread.start()
        try:
            self._ready.result()
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

    def _begin(self, calls: Sequence[Call]) -> list[Future[Answer]]:
        """Begin the calls; returns at once.

        A future raises LonghaulError if the code cannot be called any more, CancelledError after `close`.
        """
        jobs = [Job[Call, Answer](next(self._keys), call) for call in calls]
        for job in jobs:
            job.future.set_running_or_notify_cancel()  # a caller that gives up does not disturb the thread
        with self._lock:
            if self._is_over:
                raise self._broken or RuntimeError(f"the process of the {self.what} has ended")
            self._submitted.extend(jobs)
        self._wake()
        return [job.future for job in jobs]

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b".")

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        process: Process[Any] | None = None
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

    def _turn(self, process: Process[Any]) -> Process[Any]:
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

    def _start(self) -> Process[Any]:
        self._started += 1
        return Process(self.host, self._setup(), self.replies.decode, self._folder / self.log, self._cwd)

    def _send(self, process: Process[Any]) -> None:
        """Suspects go alone."""
        while process.is_ready and self._waiting and len(self._sent) < MOST_SENT:
            job = self._waiting[0]
            if self._sent and (job.is_suspect or any(one.is_suspect for one in self._sent.values())):
                return
            self._waiting.popleft()
            try:
                process.send(self._request(job))
            except LookupError as error:
                job.future.set_exception(error)
                continue
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                self._fail(job, f"it cannot be given this row: {type(error).__name__}: {error}"[:300])
                continue
            job.began_at = 0.0
            self._sent[job.key] = job

    def _hear(self, process: Process[Any], reply: Any) -> None:
        match reply:
            case Refused(why=why, name=name):
                self._give_up(self._refused(name, why))
            case Began(key=key, thread=thread, cpu_s=cpu_s):
                if key in self._sent:
                    job = self._sent[key]
                    job.began_at, job.thread, job.cpu_s = time.monotonic(), thread, cpu_s
            case Broke(key=key, why=why, trace=trace, seconds=seconds):
                if key in self._sent:
                    self._fail(self._sent.pop(key), why, trace, seconds)
            case Pong(running=running):
                process.pong = running
            case _:
                pid = self._heard(reply)
                if pid is not None:
                    process.is_ready, process.caller_pid = True, pid
                    if not self._ready.done():
                        self._ready.set_result(None)

    def _answered(self, key: int) -> Job[Call, Answer] | None:
        """The call that an answer is of, which is done now; None: it was given up."""
        if key not in self._sent:
            return None
        self._ends = 0
        return self._sent.pop(key)

    def _next_deadline(self, process: Process[Any]) -> float:
        """When something is late, in monotonic seconds."""
        if not process.is_ready:
            return process.started_at + self._import_s
        if process.pinged_at:
            return process.pinged_at + PONG_S
        running = [job.began_at for job in self._sent.values() if job.began_at]
        if running:
            return min(running) + self._reward.timeout_s
        return process.heard_at + self._reward.timeout_s + QUIET_S if self._sent else float("inf")

    def _after_deadlines(self, process: Process[Any]) -> Process[Any]:
        now, limit = time.monotonic(), self._reward.timeout_s
        if not process.is_ready:
            if now >= process.started_at + self._import_s:
                why = f"importing its file took longer than {self._import_s:g} s"
                self._give_up(self._refused("", why))
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

    def _after_its_end(self, process: Process[Any]) -> Process[Any]:
        """It ended by itself."""
        how = process.end()
        if self._broken is not None:
            return process
        if not process.is_ready:
            self._give_up(self._refused("", f"the process {how} while it imported the file"))
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
            self._give_up(self._refused("", why))
        return self._again(process, running)

    def _again(self, process: Process[Any], suspects: Collection[Job[Call, Answer]]) -> Process[Any]:
        """A new process, which gets the calls that have no answer. suspects go first, and alone."""
        for job in suspects:
            job.is_suspect = True
        self._waiting.extendleft(sorted(self._sent.values(), key=lambda job: job.is_suspect))
        self._sent.clear()
        for name, known in self.hashes.items():
            try:
                is_same = hash_of(name, self._cwd) == known
            except LonghaulError:
                is_same = False
            if not is_same:
                self._give_up(self._refused(name, "its file changed meanwhile; resume to use the new one"))
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

    def _fail(self, job: Job[Call, Answer], why: str, trace: str = "", seconds: float = 0.0) -> None:
        self._ends = 0
        self._failed(job, why, trace, seconds)

    def _internal(self, error: BaseException) -> LonghaulError:
        return LonghaulError(
            f"the process of the {self.what} cannot go on: {type(error).__name__}: {error}"[:500],
            kept="the head, unchanged",
            next_command="python -m orchestrator doctor",
            exit_code=ExitCode.INTERNAL,
        )


def cpu_s_of(pid: int, thread: int) -> float | None:
    """Processor seconds of a thread; None if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return None
