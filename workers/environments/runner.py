"""The trainer's side of environments: sends calls, enforces their time limit, starts their process anew.

One thread owns the process and the socket. A call fails for what it did itself, as with reward functions
(`to_blame`): when it is over its time limit, or ends the process while it runs alone. Episodes that were under way in a
process that ended are played again from their replies, in the next one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from profiles.errors import ExitCode, LonghaulError
from profiles.reward_files import file_of, hash_of
from workers.environments import wire
from workers.environments.protocol import Message
from workers.environments.registry import check_library, class_of
from workers.environments.wire import Opened as Opened
from workers.environments.wire import Stepped as Stepped
from workers.environments.wire import Story
from workers.rewards.functions.kept import Kept
from workers.rewards.functions.runner import IMPORT_S, MOST_ENDS, PONG_S, QUIET_S, Limits, cpu_s_of, to_blame
from workers.rewards.functions.watched import Process, drain

LOG = "environment.log"
HOST = "workers.environments.host"
MOST_SENT = 256
"""Calls that the process has at one time."""
Found = TypeVar("Found")


@dataclass(eq=False)
class _Job:
    key: int
    episode: int
    """-1: none."""
    call: Callable[[Story | None], wire.Call]
    """Makes the message. It gets the story of an episode that another process has begun."""
    future: Future[Any] = field(default_factory=Future)
    is_suspect: bool = False
    """It ran when the process ended by itself, so it is called again alone."""
    began_at: float = 0.0
    thread: int = 0
    cpu_s: float = 0.0


@dataclass
class _Episode:
    """An episode that is under way. process: number of the one that knows it; 0: none yet."""

    row: dict[str, Any]
    line: int
    process: int = 0
    replies: list[str] = field(default_factory=list)
    heard: list[list[Message]] = field(default_factory=list)

    @property
    def story(self) -> Story:
        return Story(self.row, self.line, self.replies[:], self.heard[:])


class EnvironmentRunner:
    """A context manager: the process of an environment, and nothing that it started outlives it.

    stop: texts that end a reply, once it is entered.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        limits: Limits,
        folder: Path,
        *,
        cwd: Path | None = None,
        import_s: float = IMPORT_S,
    ) -> None:
        """name: as in a profile. folder: of the attempt, for the log and failed calls. cwd: relative files are meant
        from here (the working directory). Raises LonghaulError (INPUT) for a name or file that is not there."""
        self.name, self._limits, self._folder = name, limits, folder
        self._cwd, self._import_s = cwd or Path.cwd(), import_s
        check_library(name)
        self._class, self._options = class_of(name, options)
        self._file = file_of(self._class, self._cwd)
        self._hash = hash_of(self._class, self._cwd)
        self.stop: tuple[str, ...] = ()
        self._kept = Kept(folder)
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._submitted: deque[_Job] = deque()
        self._is_closed = self._is_over = False
        self._broken: LonghaulError | None = None
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._ready: Future[tuple[str, ...]] = Future()
        self._thread = threading.Thread(target=self._run, name="environment", daemon=True)
        # Of the thread alone:
        self._episodes: dict[int, _Episode] = {}
        self._waiting: deque[_Job] = deque()
        self._sent: dict[int, _Job] = {}
        self._started = self._ends = 0

    def __enter__(self) -> Self:
        """Import the file. Raises LonghaulError (INPUT) if that fails, or the name is no environment."""
        self._thread.start()
        try:
            self.stop = self._ready.result()
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

    # --- calls -------------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]] | None:
        """Rows of the environment's own; None if it brings none. Raises LonghaulError (REWARD)."""
        found: wire.OwnRows = self._submit(-1, lambda key, _: wire.AskRows(key)).result()
        return found.rows

    def open(self, row: Mapping[str, Any], line: int = 0) -> Future[Opened]:
        """Begin an episode. line: of the row, for messages."""
        number = next(self._keys)
        with self._lock:
            self._episodes[number] = _Episode(dict(row), line)
        return self._submit(number, lambda key, story: wire.Open(key, number, story or Story({}, 0)))

    def step(self, episode: int, reply: str) -> Future[Stepped]:
        """The next reply of an episode. One that is over is forgotten by itself."""
        return self._submit(episode, lambda key, story: wire.Step(key, episode, reply, story))

    def end(self, episode: int) -> Future[float]:
        """A limit cut the episode short: the last reward. The episode is forgotten."""
        last: Future[float] = Future()

        def hand_on(over: Future[Any]) -> None:
            if (error := over.exception()) is not None:
                last.set_exception(error)
            else:
                last.set_result(over.result().reward)

        self._submit(episode, lambda key, story: wire.End(key, episode, story)).add_done_callback(hand_on)
        return last

    def _submit(self, episode: int, call: Callable[[int, Story | None], wire.Call]) -> Future[Any]:
        key = next(self._keys)
        job = _Job(key, episode, lambda story: call(key, story))
        job.future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_over:
                raise self._broken or RuntimeError("the environment has ended")
            self._submitted.append(job)
        self._wake()
        return job.future

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b".")

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        process: Process[wire.Reply] | None = None
        try:
            process = self._start()
            while not self._is_closed:
                self._take_submitted()
                if self._broken is None:
                    process = self._turn(process)
                else:
                    process.end()
                    self._refuse_all(self._broken)
                    with selectors.DefaultSelector() as selector:
                        selector.register(self._wake_r, selectors.EVENT_READ)
                        selector.select(1.0)
                    drain(self._wake_r)
        except BaseException as error:  # a bug of ours, or no process can be started: nobody may wait for ever
            self._broken = _internal(error)
        finally:
            if process is not None:
                process.end()
            with self._lock:
                self._is_over = True
            self._take_submitted()
            self._refuse_all(self._broken or CancelledError())

    def _turn(self, process: Process[wire.Reply]) -> Process[wire.Reply]:
        """Send, wait, hear, and judge what is late. Returns the process, a new one if that had to be."""
        self._send(process)
        for reply in process.wait(self._wake_r, self._next_deadline(process)):
            self._hear(process, reply)
        if process.is_gone:
            return self._after_its_end(process)
        return self._after_deadlines(process)

    def _take_submitted(self) -> None:
        with self._lock:
            self._waiting.extend(self._submitted)
            self._submitted.clear()

    def _start(self) -> Process[wire.Reply]:
        self._started += 1
        limits = self._limits
        memory = int(limits.memory_gib * 2**30)
        setup = wire.Setup(self._class, str(self._file), self._options, limits.threads, memory)
        return Process(HOST, setup, wire.replies.decode, self._folder / LOG, self._cwd)

    def _send(self, process: Process[wire.Reply]) -> None:
        """Suspects go alone."""
        while process.is_ready and self._waiting and len(self._sent) < MOST_SENT:
            job = self._waiting[0]
            if self._sent and (job.is_suspect or any(one.is_suspect for one in self._sent.values())):
                return
            self._waiting.popleft()
            episode = self._episodes.get(job.episode)
            if job.episode >= 0 and episode is None:
                job.future.set_exception(RuntimeError(f"episode {job.episode} is over"))
                continue
            try:
                process.send(job.call(episode.story if episode and episode.process != self._started else None))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                self._fail(job, f"it cannot be given this row: {type(error).__name__}: {error}"[:300])
                continue
            job.began_at = 0.0
            self._sent[job.key] = job

    def _hear(self, process: Process[wire.Reply], reply: wire.Reply) -> None:
        match reply:
            case wire.Ready(pid=pid, stop=stop):
                process.is_ready, process.caller_pid = True, pid
                if not self._ready.done():
                    self._ready.set_result(tuple(stop))
            case wire.Refused(why=why):
                self._give_up(self._refused(why))
            case wire.Began(key=key, thread=thread, cpu_s=cpu_s) if key in self._sent:
                job = self._sent[key]
                job.began_at, job.thread, job.cpu_s = time.monotonic(), thread, cpu_s
            case wire.Broke(key=key, why=why, trace=trace) if key in self._sent:
                self._fail(self._sent.pop(key), why, trace)
            case wire.Pong(running=running):
                process.pong = running
            case wire.Opened(key=key) | wire.Stepped(key=key) | wire.Over(key=key) | wire.OwnRows(key=key):
                if key in self._sent:
                    self._ends = 0
                    self._answered(self._sent.pop(key), reply)

    def _answered(self, job: _Job, reply: wire.Answer) -> None:
        if episode := self._episodes.get(job.episode):
            episode.process = self._started
            match reply:
                case wire.Opened(messages=messages):
                    episode.heard = [messages]
                case wire.Stepped(messages=messages, is_over=is_over):
                    call = job.call(None)
                    assert isinstance(call, wire.Step)
                    episode.replies.append(call.reply)
                    episode.heard.append(messages)
                    if is_over:
                        del self._episodes[job.episode]
                case _:
                    del self._episodes[job.episode]
        job.future.set_result(reply)

    def _next_deadline(self, process: Process[wire.Reply]) -> float:
        """When something is late, in monotonic seconds."""
        if not process.is_ready:
            return process.started_at + self._import_s
        if process.pinged_at:
            return process.pinged_at + PONG_S
        if running := [job.began_at for job in self._sent.values() if job.began_at]:
            return min(running) + self._limits.timeout_s
        return process.heard_at + self._limits.timeout_s + QUIET_S if self._sent else float("inf")

    def _after_deadlines(self, process: Process[wire.Reply]) -> Process[wire.Reply]:
        now, limit = time.monotonic(), self._limits.timeout_s
        if not process.is_ready:
            if now >= process.started_at + self._import_s:
                self._give_up(self._refused(f"importing its file took longer than {self._import_s:g} s"))
            return process
        late = [key for key, job in self._sent.items() if job.began_at and now >= job.began_at + limit]
        if late and not process.pinged_at:
            process.pinged_at, process.pong = now, None
            process.send(wire.Ping())
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
            self._fail(self._sent.pop(key), f"it took longer than {limit:g} s (grpo.reward.timeout_s)")
        return self._again(process, ())

    def _cpu_of_running(self, pid: int) -> dict[int, float]:
        """Processor seconds of each call that runs."""
        found = {}
        for key, job in self._sent.items():
            if job.began_at and (used := cpu_s_of(pid, job.thread)) is not None:
                found[key] = used - job.cpu_s
        return found

    def _after_its_end(self, process: Process[wire.Reply]) -> Process[wire.Reply]:
        """It ended by itself."""
        how = process.end()
        if self._broken is not None:
            return process
        if not process.is_ready:
            self._give_up(self._refused(f"the process {how} while it imported the file"))
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
            self._give_up(self._refused(f"the process {how}, {MOST_ENDS} times in a row and without a call to blame"))
        return self._again(process, running)

    def _again(self, process: Process[wire.Reply], suspects: Collection[_Job]) -> Process[wire.Reply]:
        """A new process, which gets the calls that have no answer. suspects go first, and alone."""
        for job in suspects:
            job.is_suspect = True
        self._waiting.extendleft(sorted(self._sent.values(), key=lambda job: job.is_suspect))
        self._sent.clear()
        try:
            is_same = hash_of(self._class, self._cwd) == self._hash
        except LonghaulError:
            is_same = False
        if not is_same:
            self._give_up(self._refused("its file changed while it ran; resume to use the new one"))
        return process if self._broken is not None else self._start()

    # --- failures ----------------------------------------------------------------------------------------------------

    def _give_up(self, error: LonghaulError) -> None:
        self._broken = error
        if not self._ready.done():
            self._ready.set_exception(error)

    def _refuse_all(self, error: BaseException) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
        for job in [*self._waiting, *self._sent.values()]:
            job.future.set_exception(error)
        self._waiting.clear()
        self._sent.clear()

    def _fail(self, job: _Job, why: str, trace: str = "") -> None:
        """Ends the episode of this call."""
        self._ends = 0
        episode = self._episodes.pop(job.episode, None) or _Episode({}, 0)
        failed = self._kept.keep(self.name, episode.line, job.call(episode.story), why, trace)
        job.future.set_exception(_failure(self.name, episode.line, why, failed.path))

    def _refused(self, why: str) -> LonghaulError:
        return LonghaulError(
            f"the environment {self.name} cannot be used: {why}",
            kept="everything; nothing was trained with it",
            next_command=f"correct {self._file}, then the same command (docs/environments.md)",
            exit_code=ExitCode.INPUT,
        )


def _failure(name: str, line: int, why: str, path: str) -> LonghaulError:
    where = f" in an episode of row {line} of the data" if line else ""
    given = f"; {path} has what it was given" if path else ""
    return LonghaulError(
        f"the environment {name} failed{where}: {why}{given}",
        kept="the head, unchanged; the rollouts of this step are drawn again on resume",
        next_command="correct the environment and resume; or resume with --set grpo.reward.on_error=skip "
        "--accept-changes   (leaves such episodes out)",
        exit_code=ExitCode.REWARD,
    )


def _internal(error: BaseException) -> LonghaulError:
    return LonghaulError(
        f"the process of the environment cannot go on: {type(error).__name__}: {error}"[:500],
        kept="the head, unchanged",
        next_command="python -m orchestrator doctor",
        exit_code=ExitCode.INTERNAL,
    )
