"""The process that imports the user's files and calls their functions. `serve.py` starts it and outlives it.

Functions of one rollout run in threads. Those in TRL's form run one after another on the main thread, as TRL calls
them: nobody wrote them for threads, and `signal.alarm`, which math-verify's time limits are, works only there.
Coroutines of either form share an event loop.

Memory is limited by RLIMIT_DATA, in addition to what the process has before it imports the user's files. RLIMIT_AS
would count what libraries reserve and never touch: after importing torch, transformers and math-verify the address
space has 1,790 MiB, the data 417, resident are 287. A CUDA context reserves far more. Watching the resident
memory would kill everybody for one call's sake, and too late: an allocation of GiB takes less time than a look. So the
call that asks for too much gets a MemoryError and fails alone. Each child of a function has the limit for itself.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NoReturn

from workers import process
from workers.rewards.functions import arguments, values
from workers.rewards.functions.protocol import (
    Ask,
    Began,
    Broke,
    Call,
    Ended,
    Frames,
    Ping,
    Pong,
    Ready,
    Refused,
    Reply,
    Request,
    Setup,
    Signature,
    frame,
    requests,
)
from workers.rewards.functions.signatures import NoFunction, brief, load, signature_of

CHUNK = 1 << 20
LONGEST_TRACE = 10_000
LONGEST_METRIC = 200
LONGEST_LOG = 2000
"""Characters of one `log_extra` in the log."""


def main(fd: int) -> NoReturn:
    """Serve until the socket `fd` closes, then end at once, whatever the functions do. Never returns."""
    process.die_with_parent()
    # A function may use multiprocessing, whose pools end their processes by TERM.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    connection = socket.socket(fileno=fd)
    frames = Frames()
    setup, rest = _setup(connection, frames)
    caller = Caller(connection, setup)
    caller.start_threads()
    limit_memory(setup.memory_bytes)
    try:
        caller.load(setup)
    except NoFunction:
        os._exit(0)
    caller.listen(frames, rest)
    caller.call_groups()


def _setup(connection: socket.socket, frames: Frames) -> tuple[Setup, list[Request]]:
    """The first request, and those that came with it."""
    while True:
        data = connection.recv(CHUNK)
        if not data:
            os._exit(0)
        if found := [requests.decode(body) for body in frames.feed(data)]:
            assert isinstance(found[0], Setup)
            return found[0], found[1:]


def limit_memory(more: int) -> None:
    """more: bytes that the user's code may allocate. The stacks of our threads count, so they are there by now."""
    status = Path("/proc/self/status").read_text()
    (data,) = (int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = data + more if hard == resource.RLIM_INFINITY else min(hard, data + more)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Caller:
    """The functions, the threads that call them, and the socket that their results go through."""

    def __init__(self, connection: socket.socket, setup: Setup) -> None:
        self._connection, self._names, self._threads = connection, [_own(name) for name in setup.names], setup.threads
        self._memory_bytes = setup.memory_bytes
        self._sending = threading.Lock()
        self._functions: list[Callable[..., Any]] = []
        self._signatures: list[Signature] = []
        self._singles: SimpleQueue[Ask] = SimpleQueue()
        self._groups: SimpleQueue[Ask] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._room = asyncio.Semaphore(setup.threads)
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Coroutines under way, and their calls."""
        self._pid = os.getpid()

    def start_threads(self) -> None:
        for _ in range(self._threads):
            threading.Thread(target=self._call_singles, name="reward", daemon=True).start()
        threading.Thread(target=self._loop.run_forever, name="coroutines", daemon=True).start()

    def load(self, setup: Setup) -> None:
        """Import the files and describe the functions. Raises NoFunction, which the other side knows by then."""
        modules: dict[str, ModuleType] = {}
        for name, file in zip(setup.names, setup.files, strict=True):
            try:
                self._functions.append(load(name, Path(file), modules))
                self._signatures.append(signature_of(self._functions[-1]))
            except NoFunction as error:
                self._send(Refused(name, str(error)))
                raise
        self._send(Ready(self._pid, self._signatures))

    def listen(self, frames: Frames, rest: list[Request]) -> None:
        def read() -> None:
            for request in rest:
                self._hear(request)
            while data := self._receive():
                for body in frames.feed(data):
                    self._hear(requests.decode(body))
            os._exit(0)

        threading.Thread(target=read, name="requests", daemon=True).start()

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(CHUNK)
        except OSError:
            return b""

    def _hear(self, request: Request) -> None:
        if isinstance(request, Ping):
            task = asyncio.current_task(self._loop)
            self._send(Pong(-1 if task is None else self._tasks.get(task, -1)))
        elif isinstance(request, Ask):
            signature = self._signatures[request.call.function]
            if signature.is_async:
                asyncio.run_coroutine_threadsafe(self._await(request), self._loop)
            else:
                (self._groups if signature.takes_groups else self._singles).put(request)

    # --- calls -------------------------------------------------------------------------------------------------------

    def call_groups(self) -> NoReturn:
        while True:
            self._call(self._groups.get())

    def _call_singles(self) -> NoReturn:
        while True:
            self._call(self._singles.get())

    def _call(self, ask: Ask) -> None:
        began = self._begin(ask)
        try:
            metrics: dict[str, float] = {}
            returned = self._functions[ask.call.function](**self._arguments(ask.call, metrics))
            reply: Reply = self._ended(ask, returned, metrics, began)
        except BaseException as error:  # exit() too
            reply = self._broke(ask, error, began)
        self._send(reply)

    async def _await(self, ask: Ask) -> None:
        async with self._room:
            task = asyncio.current_task()
            assert task is not None
            self._tasks[task] = ask.key
            began = self._begin(ask)
            try:
                metrics: dict[str, float] = {}
                returned = await self._functions[ask.call.function](**self._arguments(ask.call, metrics))
                reply: Reply = self._ended(ask, returned, metrics, began)
            except BaseException as error:
                reply = self._broke(ask, error, began)
            del self._tasks[task]
        self._send(reply)

    def _begin(self, ask: Ask) -> float:
        self._send(Began(ask.key, threading.get_native_id(), time.thread_time()))
        return time.monotonic()

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

    def _broke(self, ask: Ask, error: BaseException, began: float) -> Broke:
        if isinstance(error, MemoryError):
            gib = self._memory_bytes / 2**30
            why = f"MemoryError: the functions may have {gib:.3g} GiB (grpo.reward.memory_gib)"
        elif isinstance(error, SystemExit):
            why = f"it called exit({error.code!r})"
        elif isinstance(error, values.NoReward):
            why = str(error)
        else:
            why = f"it raised {brief(error)}"
        return Broke(ask.key, why, trace_of(), time.monotonic() - began)

    def _send(self, reply: Reply) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a function forked, and its child returned: only the parent's result counts
        data = frame(reply)
        try:
            with self._sending:
                self._connection.sendall(data)
        except OSError:
            os._exit(0)  # nobody waits any more


def trace_of() -> str:
    """The traceback of the error that is being handled, of bounded length."""
    try:
        trace = traceback.format_exc()
    except BaseException:  # the error's own __str__ may raise
        return ""
    if len(trace) > LONGEST_TRACE:  # a long message must not push the lines out
        return f"{trace[: LONGEST_TRACE // 2]}\n...\n{trace[-LONGEST_TRACE // 2 :]}"
    return trace


def _own(name: str) -> str:
    return name.rpartition(":")[2]
