"""The process that plays the user's environments. `workers.rewards.functions.serve` starts it and outlives it.

Calls of different episodes run side by side, in threads, or in one event loop where they are coroutines. Memory is
limited as for reward functions. What the user's code is given is a copy, so it may change it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

from workers import process
from workers.environments.answers import BadAnswer, first_of, reward_of, rows_of, schemas_of, step_of
from workers.environments.protocol import Message
from workers.environments.wire import (
    Answer,
    AskRows,
    Began,
    Broke,
    Call,
    End,
    Open,
    Opened,
    Over,
    OwnRows,
    Ping,
    Pong,
    Ready,
    Refused,
    Reply,
    Request,
    Setup,
    Stepped,
    Story,
    requests,
)
from workers.rewards.functions.caller import CHUNK, limit_memory, trace_of
from workers.rewards.functions.protocol import Frames, frame
from workers.rewards.functions.signatures import NoFunction, brief, imported


def main(fd: int) -> NoReturn:
    """Serve until the socket `fd` closes, then end at once, whatever the environments do. Never returns."""
    process.die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # multiprocessing's pools end their processes by TERM
    connection = socket.socket(fileno=fd)
    frames = Frames()
    waiting: list[Request] = []
    while not waiting:
        data = connection.recv(CHUNK)
        if not data:
            os._exit(0)
        waiting = [requests.decode(body) for body in frames.feed(data)]
    setup, *rest = waiting
    assert isinstance(setup, Setup)
    host = Host(connection, setup)
    host.start_threads()
    limit_memory(setup.memory_bytes)
    if not host.load():
        os._exit(0)
    host.listen(frames, rest)


@dataclass
class _Episode:
    """made: the user's object. messages: the conversation so far."""

    made: Any
    messages: list[Message] = field(default_factory=list)


class Host:
    """The class, the episodes that are under way, and the threads that play them."""

    def __init__(self, connection: socket.socket, setup: Setup) -> None:
        self._connection, self._setup = connection, setup
        self._sending = threading.Lock()
        self._class: Any = None
        self._episodes: dict[int, _Episode] = {}
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._running: dict[asyncio.Task[Any], int] = {}
        self._pid = os.getpid()

    def start_threads(self) -> None:
        for _ in range(self._setup.threads):
            threading.Thread(target=self._work, name="episode", daemon=True).start()
        threading.Thread(target=self._loop.run_forever, name="coroutines", daemon=True).start()

    def load(self) -> bool:
        """Import the file; tells the other side. False if the name is no environment."""
        setup = self._setup
        place, _, name = setup.name.rpartition(":")
        try:
            self._class = getattr(imported(place, Path(setup.file)), name, None)
            if not callable(self._class):
                raise NoFunction(f"there is no class {name} in {setup.file}")
            missing = [one for one in ("reset", "step") if not callable(getattr(self._class, one, None))]
            if missing and inspect.isclass(self._class):
                raise NoFunction(f"the class {name} has no method {missing[0]}")
            stop = getattr(self._class, "stop", ())
            if isinstance(stop, str) or not all(isinstance(one, str) and one for one in stop):
                raise NoFunction(f"{name}.stop is {stop!r}; a list of texts was expected")
            self._prepare(name)
        except NoFunction as error:
            self._send(Refused(str(error)))
            return False
        self._send(Ready(self._pid, list(stop)))
        return True

    def _prepare(self, name: str) -> None:
        """On the main thread, where libraries may set signals. Raises NoFunction."""
        prepare = getattr(self._class, "prepare", None)
        if prepare is None:
            return
        try:
            prepare(**copy.deepcopy(self._setup.options))
        except BaseException as error:  # the user's code may raise anything
            traceback.print_exc()
            raise NoFunction(f"{name}.prepare raises {brief(error)}") from error

    def listen(self, frames: Frames, rest: Sequence[Request]) -> NoReturn:
        for request in rest:
            self._hear(request)
        while True:
            try:
                data = self._connection.recv(CHUNK)
            except OSError:
                data = b""
            if not data:
                os._exit(0)
            for body in frames.feed(data):
                self._hear(requests.decode(body))

    def _hear(self, request: Request) -> None:
        if isinstance(request, Ping):
            task = asyncio.current_task(self._loop)
            self._send(Pong(-1 if task is None else self._running.get(task, -1)))
        elif not isinstance(request, Setup):
            self._calls.put(request)

    # --- calls -------------------------------------------------------------------------------------------------------

    def _work(self) -> NoReturn:
        while True:
            call = self._calls.get()
            self._send(Began(call.key, threading.get_native_id(), time.thread_time()))
            try:
                reply: Reply = self._answer(call)
            except BaseException as error:  # exit() too
                reply = Broke(call.key, self._why(error), trace_of())
                if not isinstance(call, AskRows):
                    self._episodes.pop(call.episode, None)
            self._send(reply)

    def _answer(self, call: Call) -> Answer:
        if isinstance(call, AskRows):
            rows = getattr(self._class, "rows", None)
            return OwnRows(call.key, None if rows is None else rows_of(self._done(call.key, self._rows)))
        if isinstance(call, Open):
            episode = self._opened(call.key, call.story)
            self._episodes[call.episode] = episode
            tools = schemas_of(getattr(episode.made, "tools", None) or ())
            return Opened(call.key, call.episode, episode.messages, tools)
        if call.story is not None and call.episode not in self._episodes:
            self._episodes[call.episode] = self._replayed(call.key, call.story)
        episode = self._episodes[call.episode]
        if isinstance(call, End):
            del self._episodes[call.episode]
            last = getattr(episode.made, "end", None)
            if last is None:
                return Over(call.key, 0.0)
            return Over(call.key, reward_of(self._done(call.key, last, copy.deepcopy(episode.messages))))
        said, reward, is_over = self._stepped(call.key, episode, call.reply)
        if is_over:
            del self._episodes[call.episode]
        return Stepped(call.key, said, reward, is_over)

    def _rows(self) -> Any:
        """A generator runs here too, within the call's time limit."""
        rows = self._class.rows
        try:
            inspect.signature(rows).bind()
        except TypeError:  # an ordinary method: it needs an object
            rows = self._class(**copy.deepcopy(self._setup.options)).rows
        found = rows()
        return found if inspect.isawaitable(found) else list(found)

    def _opened(self, key: int, story: Story) -> _Episode:
        made = self._class(**copy.deepcopy(self._setup.options))
        return _Episode(made, first_of(self._done(key, made.reset, copy.deepcopy(story.row))))

    def _stepped(self, key: int, episode: _Episode, reply: str) -> tuple[list[Message], float, bool]:
        episode.messages.append({"role": "assistant", "content": reply})
        found = step_of(self._done(key, episode.made.step, copy.deepcopy(episode.messages), reply))
        episode.messages += found[0]
        return found

    def _replayed(self, key: int, story: Story) -> _Episode:
        """The episode again, with the same replies. Raises BadAnswer if the environment says anything else."""
        episode = self._opened(key, story)
        said = [episode.messages[:]]
        for reply in story.replies:
            said.append(self._stepped(key, episode, reply)[0])
        if said != story.heard:
            raise BadAnswer(
                "the process ended in the middle of the episode, which cannot be played again: the environment says "
                "other things to the same replies"
            )
        return episode

    def _done(self, key: int, function: Callable[..., Any], *arguments: Any) -> Any:
        found = function(*arguments)
        if not inspect.isawaitable(found):
            return found

        async def awaited() -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._running[task] = key
            try:
                return await found
            finally:
                del self._running[task]

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def _why(self, error: BaseException) -> str:
        if isinstance(error, MemoryError):
            gib = self._setup.memory_bytes / 2**30
            return f"MemoryError: environments may have {gib:.3g} GiB (grpo.reward.memory_gib)"
        if isinstance(error, SystemExit):
            return f"it called exit({error.code!r})"
        return str(error) if isinstance(error, BadAnswer) else f"it raised {brief(error)}"

    def _send(self, reply: Reply) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # an environment forked, and its child returned: only the parent's result counts
        data = frame(reply)
        try:
            with self._sending:
                self._connection.sendall(data)
        except OSError:
            os._exit(0)  # nobody waits any more
