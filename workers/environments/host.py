"""The process that plays the user's environments.

Calls of different episodes run side by side, in threads, or in one event loop where they are coroutines. What the
user's code is given is a copy, so it may change it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from workers.environments.answers import BadAnswer, first_of, reward_of, rows_of, schemas_of, step_of
from workers.environments.protocol import Message
from workers.environments.wire import (
    Answer,
    AskRows,
    Call,
    End,
    Open,
    Opened,
    Over,
    OwnRows,
    Ready,
    Request,
    Setup,
    Stepped,
    Story,
)
from workers.user_code.errors import NotUsable
from workers.user_code.frames import Refused
from workers.user_code.imports import brief, imported
from workers.user_code.serving import CodeServer


def main(fd: int) -> NoReturn:
    """Serve the environments. Never returns."""
    Host.serve(fd)


@dataclass
class _Episode:
    """made: the user's object. messages: the conversation so far."""

    made: Any
    messages: list[Message] = field(default_factory=list)


class Host(CodeServer[Setup, Call]):
    """The class, the episodes that are under way, and what each call does with one."""

    what = "environment"
    requests = msgspec.msgpack.Decoder(Request)

    def __init__(self, connection: socket.socket, setup: Setup) -> None:
        super().__init__(connection, setup)
        self._class: Any = None
        self._episodes: dict[int, _Episode] = {}

    def load(self) -> Ready:
        """Import the file."""
        try:
            return Ready(self._pid, self._load())
        except NotUsable as error:
            self._send(Refused(str(error)))
            raise

    def _load(self) -> list[str]:
        """The class's own stop texts. Raises NotUsable if the name is no environment."""
        setup = self._setup
        place, _, name = setup.name.rpartition(":")
        self._class = getattr(imported(place, Path(setup.file)), name, None)
        if not callable(self._class):
            raise NotUsable(f"there is no class {name} in {setup.file}")
        missing = [one for one in ("reset", "step") if not callable(getattr(self._class, one, None))]
        if missing and inspect.isclass(self._class):
            raise NotUsable(f"the class {name} has no method {missing[0]}")
        stop = getattr(self._class, "stop", ())
        if isinstance(stop, str) or not all(isinstance(one, str) and one for one in stop):
            raise NotUsable(f"{name}.stop is {stop!r}; a list of texts was expected")
        self._prepare(name)
        return list(stop)

    def _prepare(self, name: str) -> None:
        """On the main thread, where libraries may set signals. Raises NotUsable."""
        prepare = getattr(self._class, "prepare", None)
        if prepare is None:
            return
        try:
            prepare(**copy.deepcopy(self._setup.options))
        except BaseException as error:  # the user's code may raise anything
            traceback.print_exc()
            raise NotUsable(f"{name}.prepare raises {brief(error)}") from error

    # --- calls -------------------------------------------------------------------------------------------------------

    def take(self, request: Call) -> None:
        self._calls.put(request)

    def call(self, request: Call) -> None:
        began = self._begin(request.key)
        try:
            reply: Struct = self._answer(request)
        except BaseException as error:  # exit() too
            reply = self._broke(request.key, error, began)
            if not isinstance(request, AskRows):
                self._episodes.pop(request.episode, None)
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
            self._tasks[task] = key
            try:
                return await found
            finally:
                del self._tasks[task]

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()
