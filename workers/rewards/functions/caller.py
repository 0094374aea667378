"""The process that imports the user's files and calls their functions.

Functions of one rollout run in threads. Those in TRL's form run one after another on the main thread, as TRL calls
them: nobody wrote them for threads, and `signal.alarm`, which math-verify's time limits are, works only there.
Coroutines of either form share an event loop.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from workers.rewards.functions import arguments, values
from workers.rewards.functions.protocol import Ask, Call, Ended, Ready, Request, Setup, Signature
from workers.rewards.functions.signatures import load, signature_of
from workers.user_code.errors import NotUsable
from workers.user_code.frames import Refused
from workers.user_code.serving import CodeServer

LONGEST_METRIC = 200
LONGEST_LOG = 2000
"""Characters of one `log_extra` in the log."""


def main(fd: int) -> NoReturn:
    """Serve the functions. Never returns."""
    Caller.serve(fd)


class Caller(CodeServer[Setup, Ask]):
    """The functions, and what each is given and returns."""

    what = "reward functions"
    requests = msgspec.msgpack.Decoder(Request)

    def __init__(self, connection: socket.socket, setup: Setup) -> None:
        super().__init__(connection, setup)
        self._names = [_own(name) for name in setup.names]
        self._functions: list[Callable[..., Any]] = []
        self._signatures: list[Signature] = []
        self._groups: SimpleQueue[Ask] = SimpleQueue()
        self._room = asyncio.Semaphore(setup.threads)

    def load(self) -> Ready:
        """Import the files and describe the functions."""
        modules: dict[str, ModuleType] = {}
        for name, file in zip(self._setup.names, self._setup.files, strict=True):
            try:
                self._functions.append(load(name, Path(file), modules))
                self._signatures.append(signature_of(self._functions[-1]))
            except NotUsable as error:
                self._send(Refused(str(error), name))
                raise
        return Ready(self._pid, self._signatures)

    def take(self, request: Ask) -> None:
        signature = self._signatures[request.call.function]
        if signature.is_async:
            asyncio.run_coroutine_threadsafe(self._await(request), self._loop)
        else:
            (self._groups if signature.takes_groups else self._calls).put(request)

    def work_on_main_thread(self) -> NoReturn:
        while True:
            self.call(self._groups.get())

    def call(self, request: Ask) -> None:
        began = self._begin(request.key)
        try:
            metrics: dict[str, float] = {}
            returned = self._functions[request.call.function](**self._arguments(request.call, metrics))
            reply: Struct = self._ended(request, returned, metrics, began)
        except BaseException as error:  # exit() too
            reply = self._broke(request.key, error, began)
        self._send(reply)

    async def _await(self, ask: Ask) -> None:
        async with self._room:
            task = asyncio.current_task()
            assert task is not None
            self._tasks[task] = ask.key
            began = self._begin(ask.key)
            try:
                metrics: dict[str, float] = {}
                returned = await self._functions[ask.call.function](**self._arguments(ask.call, metrics))
                reply: Struct = self._ended(ask, returned, metrics, began)
            except BaseException as error:
                reply = self._broke(ask.key, error, began)
            del self._tasks[task]
        self._send(reply)

    def _arguments(self, call: Call, metrics: dict[str, float]) -> dict[str, Any]:
        signature, name = self._signatures[call.function], self._names[call.function]
        if not signature.takes_groups:
            return arguments.of_one(signature, call)

        def log_metric(metric: str, value: float) -> None:
            if math.isfinite(found := float(value)):
                metrics[f"{name}/{metric}"[:LONGEST_METRIC]] = found

        def log_extra(column: str, found: list[Any]) -> None:
            print(f"row {call.row}: {name}: {column}: {found!r}"[:LONGEST_LOG], flush=True)  # noqa: T201

        return arguments.of_group(signature, call, log_extra, log_metric)

    def _ended(self, ask: Ask, returned: Any, metrics: dict[str, float], began: float) -> Ended:
        call, name = ask.call, self._names[ask.call.function]
        if self._signatures[call.function].takes_groups:
            results = values.of_group(name, returned, len(call.rollouts))
        else:
            results = [values.of_one(name, returned)]
        results = [{**metrics, **one} if isinstance(one, dict) else one for one in results]
        return Ended(ask.key, results, time.monotonic() - began)


def _own(name: str) -> str:
    return name.rpartition(":")[2]
