"""Workers of the simulation: their launcher, the link to the master, and the server of commands."""

from __future__ import annotations

import errno
import os
import queue
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from orchestrator.launchers.launcher import Handle, Life, Order, Started
from profiles.errors import ExitCode
from profiles.schema import Profile
from tests.faults.simulation.world import FOREVER, Task, Violation, World
from workers.contract import HEARTBEAT_EVERY_S, Message
from workers.control import Control, Requests

LIFELINE_S = 1.0
"""A worker ends within this time after its master, unless a native call keeps it."""


class Starts:
    """The queue of `Requests.start`, for whose first entry a standby waits."""

    def __init__(self, world: World) -> None:
        self._world, self._entries = world, deque[Message | None]()

    def put(self, entry: Message | None) -> None:
        self._entries.append(entry)

    def get(self) -> Message | None:
        while not self._entries:
            self._world.pause(FOREVER, waits=True)
        return self._entries.popleft()


class SimulatedControl(Control):
    """The worker's end of its link, without threads: what arrives is obeyed when the worker is next given time."""

    def __init__(self, process: Process) -> None:
        self.requests = Requests()
        self.requests.start = Starts(process.world)  # type: ignore[assignment]
        self.requests.wait = lambda seconds: process.world.pause(seconds, waits=True)  # type: ignore[method-assign]
        self._token = process.handle.token
        self._process = process
        self._hinted = False
        self._step, self._stage = 0, "starting"
        self._is_deaf = False

    def send(self, message: Message) -> None:
        self._process.world.tick()
        self._process.send(message)

    def hint(self) -> None:
        self._process.send(Message(type="event_hint"))

    def at(self, step: int, stage: str) -> None:
        self._step, self._stage = step, stage
        self.send(self._heartbeat())

    def fence(self) -> None: ...

    def close(self) -> None: ...

    def _obey(self, message: Message) -> None:
        if message.type == "abort":
            self._process.ends(ExitCode.ABORTED)
        else:
            super()._obey(message)


@dataclass(eq=False)
class Process:
    """One worker. exit_code: None while it lives."""

    world: World
    handle: Handle
    exit_code: int | None = None
    is_stopped: bool = False
    is_native: bool = False
    """Hangs in a native call: no heartbeat, and its lifeline is not read."""
    has_work: bool = False
    to_master: deque[tuple[float, bytes]] = field(default_factory=deque)
    to_worker: deque[tuple[float, bytes]] = field(default_factory=deque)
    master: Task | None = None
    """Who holds the other end; None: it was closed."""
    task: Task | None = None
    control: SimulatedControl | None = None
    beats_at: float = 0.0
    dies_at: float = FOREVER

    def body(self) -> None:
        from workers import __main__ as entry

        world = self.world
        world.pause(world.draw.choice((0.05, 0.3, 3.0)))  # the interpreter starts
        self.control = SimulatedControl(self)
        entry.crash_point("worker.before_ready")
        try:
            self.control.send(Message(type="ready"))
            code = entry.wait_and_work(self.control, self.handle.token, None)
        except OSError:
            code = 1
        except Exception as error:
            raise Violation(f"a worker ends with {error!r}") from error
        self.ends(code)

    def ends(self, code: int) -> None:
        """It ends with this code; its master sees that at its next look."""
        if self.exit_code is None:
            self.exit_code = code
            self.world.tell(f"{self.handle} ends with {code}")
            if self.task is not None:
                self.world.end(self.task)
            self.world.arrives(self.master, self.world.now)

    def send(self, message: Message, *, token: str = "", late_s: float = 0.0) -> None:
        line = msgspec.json.encode(msgspec.structs.replace(message, attempt=token or self.handle.token)) + b"\n"
        at = self.world.now + late_s + self.world.draw.choice((0.0, 0.0, 0.001, 0.1))
        if self.to_master:
            at = max(at, self.to_master[-1][0])  # a stream keeps the order
        self.to_master.append((at, line))
        self.world.arrives(self.master, at)

    def lives(self) -> bool:
        """What its threads do while it waits or works: heartbeats, requests, the lifeline. False: it has ended."""
        now = self.world.now
        if self.exit_code is not None or self.task is None:
            return False
        if now >= self.dies_at and not self.is_native and not self.is_stopped:
            self.ends(ExitCode.STORE)
            return False
        if self.is_stopped or self.is_native or self.control is None:
            return True
        while self.to_worker and self.to_worker[0][0] <= now and self.exit_code is None:
            _, line = self.to_worker.popleft()
            message = msgspec.json.decode(line, type=Message)
            if message.type == "start":
                self.has_work = True
            self.control._take(line)
            self.world.arrives(self.task, now)
        if self.exit_code is None and now >= self.beats_at and self.master is not None:
            self.beats_at = now + HEARTBEAT_EVERY_S
            self.send(self.control._heartbeat())
        return self.exit_code is None


class Link:
    """The master's end: a socket that never blocks."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def send(self, data: bytes) -> int:
        process = self._process
        if process.exit_code is not None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        at = process.world.now + process.world.draw.choice((0.0, 0.001, 0.1))
        if process.to_worker:
            at = max(at, process.to_worker[-1][0])
        process.to_worker += ((at, line + b"\n") for line in data.split(b"\n") if line)
        return len(data)

    def recv(self, _most: int) -> bytes:
        process, found = self._process, b""
        while process.to_master and (process.to_master[0][0] <= process.world.now or process.exit_code is not None):
            found += process.to_master.popleft()[1]
        if not found and process.exit_code is None:
            raise BlockingIOError
        return found

    def close(self) -> None:
        if self._process.master is not None:
            self._process.master = None
            self._process.dies_at = self._process.world.now + self._process.world.draw.random() * LIFELINE_S


class Machine:
    """The processes of the simulated machine. One at a time is the simulation's; see `THE`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.processes: list[Process] = []
        self.refusals = 0
        """How many starts the system refuses from now on."""
        self._pids = 10_000

    def living(self) -> list[Process]:
        return [process for process in self.processes if process.exit_code is None]

    def spawn(self, handle: Handle) -> Process:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._pids += 1
        process = Process(self.world, replace(handle, pid=self._pids, started=self.world.utc()))
        process.master = self.world.current
        process.beats_at = self.world.now + HEARTBEAT_EVERY_S
        process.task = self.world.start(f"worker {self._pids}", process.body)
        self.processes.append(process)
        return process

    def look(self) -> None:
        """Let the threads of all workers do their work, and see that no two of them train."""
        for process in self.processes:
            process.lives()
        working = [process for process in self.living() if process.has_work]
        if len(working) > 1:
            raise Violation(f"two workers work at once: {[str(process.handle) for process in working]}")

    def master_died(self, master: Task) -> None:
        for process in self.living():
            if process.master is master:
                process.master = None
                process.dies_at = self.world.now + self.world.draw.random() * LIFELINE_S


THE: list[Machine] = []
"""The machine of the schedule that runs."""


class SimulatedLauncher:
    """`launch.launcher` of the simulation."""

    def __init__(self, profile: Profile) -> None:
        self._machine = THE[-1]

    def start(self, order: Order) -> Started:
        order.log.parent.mkdir(parents=True, exist_ok=True)
        order.log.touch()
        self._machine.world.tick()
        process = self._machine.spawn(order.handle)
        return Started(process.handle, control=Link(process), lifeline=None, ended=-1)  # type: ignore[arg-type]

    def _of(self, handle: Handle) -> Process | None:
        return next((one for one in self._machine.processes if one.handle.pid == handle.pid), None)

    def poll(self, handle: Handle) -> Life:
        process = self._of(handle)
        return Life(0) if process is None else Life(process.exit_code, is_stopped=process.is_stopped)

    def signal(self, handle: Handle, number: int) -> None:
        process = self._of(handle)
        if process is None or process.exit_code is not None:
            return
        if number == signal.SIGKILL:
            process.ends(-signal.SIGKILL)
        elif number == signal.SIGCONT and process.is_stopped:
            process.is_stopped = False
            assert process.task is not None
            process.task.held_until = 0.0

    def wait(self, handle: Handle, seconds: float | None = None) -> Life:
        world = self._machine.world
        until = world.now + (FOREVER if seconds is None else seconds)
        while (life := self.poll(handle)).exit_code is None and world.now < until:
            world.pause(min(0.1, until - world.now))
        return life

    def adopt(self, owner: str, handles: Sequence[Handle]) -> list[Handle]:
        return [one.handle for one in self._machine.living() if one.handle.owner == owner]


@dataclass(eq=False)
class SimulatedClient:
    """A command from another terminal."""

    command: str
    change: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)
    is_open: bool = True
    is_heard: bool = False
    """Whether a master has read it."""

    def answer(self, *, until_exit: bool = False, **facts: Any) -> None:
        if self.answers:
            raise Violation(f"the command {self.command} is answered twice: {self.answers}, {facts}")
        self.answers.append(facts)
        self.is_open = False


class SimulatedServer:
    """`orchestrator.control.Server` without sockets. waiting: commands that no master has read yet."""

    waiting: queue.SimpleQueue[SimulatedClient]

    def __init__(self, run: Any) -> None: ...

    def sockets(self, now: float) -> list[Any]:
        return []

    def poll(self, now: float) -> list[SimulatedClient]:
        found = []
        while not self.waiting.empty():
            found.append(self.waiting.get())
            found[-1].is_heard = True
        return found

    def close(self) -> None: ...
