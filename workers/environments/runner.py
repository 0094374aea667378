"""The trainer's side of environments.

A failed call ends its episode. Episodes that were under way in a process that ended are played again from their
replies, in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.reward_files import file_of
from workers.environments import wire
from workers.environments.protocol import Message
from workers.environments.registry import check_library, class_of
from workers.environments.wire import Opened as Opened
from workers.environments.wire import Stepped as Stepped
from workers.environments.wire import Story
from workers.user_code.calls import IMPORT_S, CallRunner, Job, Limits

LOG = "environment.log"


class _Call(NamedTuple):
    """episode: -1: none. message: makes it of the call's key, and of the story of an episode that another process has
    begun."""

    episode: int
    message: Callable[[int, Story | None], wire.Call]


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


class EnvironmentRunner(CallRunner[_Call, Any]):
    """A context manager: the process of an environment, and nothing that it started outlives it.

    stop: texts that end a reply, once it is entered.
    """

    host, log, what = "workers.environments.host", LOG, "environment"
    replies = msgspec.msgpack.Decoder(wire.Reply)

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
        check_library(name)
        self.name, (self._class, self._options) = name, class_of(name, options)
        super().__init__([self._class], limits, folder, cwd, import_s)
        self._file = file_of(self._class, self._cwd)
        self.stop: tuple[str, ...] = ()
        self._episodes: dict[int, _Episode] = {}

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

    def _submit(self, episode: int, message: Callable[[int, Story | None], wire.Call]) -> Future[Any]:
        (future,) = self._begin([_Call(episode, message)])
        return future

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _setup(self) -> Struct:
        memory = int(self._reward.memory_gib * 2**30)
        return wire.Setup(self._class, str(self._file), self._options, self._reward.threads, memory)

    def _request(self, job: Job[_Call, Any]) -> Struct:
        number, message = job.call
        if number < 0:
            return message(job.key, None)
        if number not in self._episodes:
            raise LookupError(f"episode {number} is over")
        episode = self._episodes[number]
        return message(job.key, episode.story if episode.process != self._started else None)

    def _heard(self, reply: Any) -> int | None:
        if isinstance(reply, wire.Ready):
            self.stop = tuple(reply.stop)
            return reply.pid
        if job := self._answered(reply.key):
            if job.call.episode in self._episodes:
                self._told(job, self._episodes[job.call.episode], reply)
            job.future.set_result(reply)
        return None

    def _told(self, job: Job[_Call, Any], episode: _Episode, reply: wire.Answer) -> None:
        """What an answer means for the episode."""
        episode.process = self._started
        match reply:
            case wire.Opened(messages=messages):
                episode.heard = [messages]
            case wire.Stepped(messages=messages, is_over=is_over):
                step = job.call.message(job.key, None)
                assert isinstance(step, wire.Step)
                episode.replies.append(step.reply)
                episode.heard.append(messages)
                if is_over:
                    del self._episodes[job.call.episode]
            case _:
                del self._episodes[job.call.episode]

    def _failed(self, job: Job[_Call, Any], why: str, trace: str, seconds: float) -> None:
        episode = self._episodes.pop(job.call.episode, None) or _Episode({}, 0)
        given = job.call.message(job.key, episode.story)
        path = self._kept.keep(self.name, episode.line, given, why, trace)
        job.future.set_exception(_failure(self.name, episode.line, why, path))

    def _refused(self, name: str, why: str) -> LonghaulError:
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
