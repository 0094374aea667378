"""The process that runs the user's code, as far as every kind of it is alike: threads, a loop, memory, answers.

Memory is limited by RLIMIT_DATA, in addition to what the process has before it imports the user's files. RLIMIT_AS
would count what libraries reserve and never touch: after importing torch, transformers and math-verify the address
space has 1,790 MiB, the data 417, resident are 287. A CUDA context reserves far more. Watching the resident
memory would kill everybody for one call's sake, and too late: an allocation of GiB takes less time than a look. So the
call that asks for too much gets a MemoryError and fails alone. Each child of the user's code has the limit for itself.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

import msgspec
from msgspec import Struct

from workers import process
from workers.user_code.errors import BadReturn, NotUsable
from workers.user_code.frames import Began, Broke, Frames, Ping, Pong, frame
from workers.user_code.imports import brief

CHUNK = 1 << 20
LONGEST_TRACE = 10_000


class Setup(Protocol):
    """memory_bytes: in addition to what the process has before it imports the user's files."""

    @property
    def threads(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...


Begin = TypeVar("Begin", bound=Setup)
Request = TypeVar("Request")


class CodeServer(ABC, Generic[Begin, Request]):
    """The threads and the loop that call the user's code, and the socket that answers go through."""

    what: ClassVar[str]
    """The user's code, in words."""
    requests: ClassVar[msgspec.msgpack.Decoder[Any]]
    """Decodes what the trainer says: the setup, requests, and Ping."""

    def __init__(self, connection: socket.socket, setup: Begin) -> None:
        self._connection, self._setup = connection, setup
        self._sending = threading.Lock()
        self._calls: SimpleQueue[Request] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[asyncio.Task[Any], int] = {}
        """Coroutines under way, and their calls."""
        self._pid = os.getpid()

    @classmethod
    def serve(cls, fd: int) -> NoReturn:
        """Serve until the socket `fd` closes, then end at once, whatever the user's code does."""
        process.die_with_parent()
        # The user's code may use multiprocessing, whose pools end their processes by TERM.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        connection, frames = socket.socket(fileno=fd), Frames()
        setup, *rest = _first_of(connection, frames, cls.requests)
        server = cls(connection, setup)
        server._start_threads()
        limit_memory(setup.memory_bytes)
        try:
            server._send(server.load())
        except NotUsable:
            os._exit(0)
        threading.Thread(target=server.listen, args=(frames, rest), name="requests", daemon=True).start()
        server.work_on_main_thread()

    # --- what each kind of code does for itself ---------------------------------------------------------------------

    @abstractmethod
    def load(self) -> Struct:
        """Import the user's code; returns what it is like. Raises NotUsable, once `Refused` is sent."""

    @abstractmethod
    def take(self, request: Request) -> None:
        """Hand a request to a thread (`_calls`) or to the loop; returns at once."""

    @abstractmethod
    def call(self, request: Request) -> None:
        """Do what a thread was handed, and send the answer. Raises nothing."""

    def work_on_main_thread(self) -> NoReturn:
        """What may run only there."""
        while True:
            signal.pause()

    # --- for each kind -----------------------------------------------------------------------------------------------

    def _start_threads(self) -> None:
        for _ in range(self._setup.threads):
            threading.Thread(target=self._work, name=self.what, daemon=True).start()
        threading.Thread(target=self._loop.run_forever, name="coroutines", daemon=True).start()

    def _work(self) -> NoReturn:
        while True:
            self.call(self._calls.get())

    def listen(self, frames: Frames, rest: Sequence[Any]) -> NoReturn:
        for request in rest:
            self._hear(request)
        while data := self._receive():
            for body in frames.feed(data):
                self._hear(self.requests.decode(body))
        os._exit(0)

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(CHUNK)
        except OSError:
            return b""

    def _hear(self, request: Any) -> None:
        if isinstance(request, Ping):
            task = asyncio.current_task(self._loop)
            self._send(Pong(-1 if task is None else self._tasks.get(task, -1)))
        else:
            self.take(request)

    def _begin(self, key: int) -> float:
        """The call runs now, in this thread. Returns monotonic seconds."""
        self._send(Began(key, threading.get_native_id(), time.thread_time()))
        return time.monotonic()

    def _broke(self, key: int, error: BaseException, began: float) -> Broke:
        """error: is being handled."""
        if isinstance(error, MemoryError):
            gib = self._setup.memory_bytes / 2**30
            why = f"MemoryError: the {self.what} may have {gib:.3g} GiB (grpo.reward.memory_gib)"
        elif isinstance(error, SystemExit):
            why = f"it called exit({error.code!r})"
        else:
            why = str(error) if isinstance(error, BadReturn) else f"it raised {brief(error)}"
        return Broke(key, why, _trace(), time.monotonic() - began)

    def _send(self, reply: Struct) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # the user's code forked, and its child returned: only the parent's answer counts
        data = frame(reply)
        try:
            with self._sending:
                self._connection.sendall(data)
        except OSError:
            os._exit(0)  # nobody waits any more


def _first_of(connection: socket.socket, frames: Frames, decoder: msgspec.msgpack.Decoder[Any]) -> list[Any]:
    """The first request, and those that came with it."""
    while data := connection.recv(CHUNK):
        if found := [decoder.decode(body) for body in frames.feed(data)]:
            return found
    os._exit(0)


def limit_memory(more: int) -> None:
    """more: bytes that the user's code may allocate. The stacks of our threads count, so they are there by now."""
    status = Path("/proc/self/status").read_text()
    (data,) = (int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = data + more if hard == resource.RLIM_INFINITY else min(hard, data + more)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _trace() -> str:
    """The traceback of the error that is being handled, of bounded length."""
    try:
        trace = traceback.format_exc()
    except BaseException:  # the error's own __str__ may raise
        return ""
    if len(trace) > LONGEST_TRACE:  # a long message must not push the lines out
        return f"{trace[: LONGEST_TRACE // 2]}\n...\n{trace[-LONGEST_TRACE // 2 :]}"
    return trace
