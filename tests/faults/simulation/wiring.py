"""Puts the world in the place of clock, disk, processes, threads and sockets, for as long as a schedule runs."""

from __future__ import annotations

import io
import os
import secrets
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from orchestrator import commit, full_disk, hashing, live_facts, loop, run_directory, verifying, worker_pool
from orchestrator.commands import run as run_command
from orchestrator.display.plain import Plain
from orchestrator.display.screen import Screen
from orchestrator.report import page
from orchestrator.signals import SIGNALS
from profiles.launchers import LAUNCHERS
from state import checkpoint, crash, durable, lock
from state.history import CheckpointFacts
from state.layout import RunDir
from tests.faults.simulation.processes import THE, Machine, SimulatedServer
from tests.faults.simulation.world import Task, World
from workers.cycle import saving, train, validate

_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
import workers.__main__  # noqa: E402 - it ignores signals
import workers.fake.kind  # noqa: E402, F401 - now: what is imported while a schedule runs would keep its crash points

for _number, _handler in _handlers.items():
    signal.signal(_number, _handler)

LAUNCHER = "tests.faults.simulation.processes:SimulatedLauncher"
BALLAST_BYTES = 4096
ROOM = 1 << 40
SQLITE_IOERR, SQLITE_FULL = sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL


class SimulatedHasher(hashing.Hasher):
    """Its thread is a task, which ends with the master."""

    world: World

    def start(self, facts: CheckpointFacts, *, scrub_mb_per_s: float = 0.0) -> None:
        assert self.current is None, "one at a time"
        self.current, self.is_scrub, self._result = facts, scrub_mb_per_s > 0, None
        master = self.world.current
        assert master is not None

        def work() -> None:
            self.world.pause(self.world.draw.choice((0.0, 1.0, 100.0)))
            self._result = self._hashed(facts, self.world.tick, is_scrub=False)
            self.world.arrives(master, self.world.now)

        self._task = self.world.start("hash", work)
        master.helpers.append(self._task)

    def _end(self) -> bool:
        if self.current is not None:
            self.world.end(self._task)
        return self._result is None


class Silent(Screen):
    """Writes what the master says, and draws nothing: drawing takes half of a schedule's time."""

    def render(self, history: Any, live: Any) -> None: ...

    def reload(self, reader: Any) -> None: ...


class Connection(sqlite3.Connection):
    """A connection whose transactions may be interrupted, and may fail as the disk does."""

    world: World
    on_commit: Callable[[sqlite3.Connection], None]

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        if sql not in ("BEGIN IMMEDIATE", "COMMIT") or self.world.caller() is None:
            return super().execute(sql, *rest)
        try:
            self.world.use_disk(writes=True)
        except OSError as error:
            failure = sqlite3.OperationalError("simulated: database or disk is full, or disk I/O error")
            failure.sqlite_errorcode = SQLITE_FULL if error.errno in durable.FULL_ERRORS else SQLITE_IOERR
            raise failure from error
        found = super().execute(sql, *rest)
        if sql == "COMMIT":
            self.on_commit(self)
            self.world.tick()
        return found


@contextmanager
def wired(machine: Machine, log: io.StringIO, on_commit: Callable[[sqlite3.Connection], None]) -> Iterator[None]:
    """Everything that the master and workers ask of the system, they ask of the machine's world."""
    world = machine.world
    real = {name: getattr(os, name) for name in ("write", "fsync", "rename", "statvfs")}
    connect, acquire, really_sleep = sqlite3.connect, lock.RunLock.acquire, time.sleep

    class OfThisWorld(Connection):
        pass

    OfThisWorld.world, OfThisWorld.on_commit = world, staticmethod(on_commit)
    SimulatedHasher.world = world

    def write(fd: int, data: Any) -> int:
        if fd not in (SIGNALS.wake_writer, 1, 2):
            world.use_disk(writes=True)
        return int(real["write"](fd, data))

    def sleep(seconds: float) -> None:
        world.pause(seconds) if world.is_here() else really_sleep(seconds)

    def fsync(fd: int) -> None:
        world.use_disk(writes=False)

    def rename(*arguments: Any, **options: Any) -> None:
        world.use_disk(writes=False)
        real["rename"](*arguments, **options)

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*arguments, factory=OfThisWorld, **options)
        if (task := world.caller()) is not None:
            task.connections.append(made)
        return made

    def acquired(run: RunDir, **options: Any) -> lock.RunLock:
        made = acquire(run, **options)
        if (task := world.caller()) is not None:
            task.locks.append(made)
        return made

    def wait(_sources: Any, seconds: float | None) -> set[int]:
        world.pause(float("inf") if seconds is None else max(seconds, 0.001), waits=True)
        return set()

    def statvfs(path: Any) -> os.statvfs_result:
        found = list(real["statvfs"](path))
        found[4] = 0 if world.now < world.disk.full_until else ROOM // found[1]  # f_bavail, in blocks of f_frsize
        return os.statvfs_result(found)

    def screen(run: RunDir, profile: Any, *, plain: bool) -> Screen:
        return Silent(run, Plain(log), None, profile)

    def say(text: str) -> None:
        log.write(text)

    changes: list[tuple[Any, str, Any]] = [
        (time, "time", world.utc),
        (time, "monotonic", lambda: world.now),
        (time, "sleep", sleep),
        (os, "write", write),
        (os, "fsync", fsync),
        (os, "rename", rename),
        (sqlite3, "connect", connected),
        (secrets, "token_hex", lambda size=8: world.draw.randbytes(size).hex()),
        (lock.RunLock, "acquire", acquired),
        (os, "statvfs", statvfs),
        (run_directory, "BALLAST_BYTES", BALLAST_BYTES),
        (full_disk, "BALLAST_BYTES", BALLAST_BYTES),
        (full_disk, "wait_for_any", wait),
        (full_disk, "Server", SimulatedServer),
        (full_disk, "say", say),
        (live_facts.LiveFacts, "_measure_memory", lambda facts, active, now: None),
        (saving, "LOOK_EVERY_S", 1.0),
        (checkpoint, "side_by_side", lambda work, items: list(map(work, items))),  # a thread has no faults
        (loop, "STOPPED_BY_SIGNAL_S", 60.0),
        (loop, "wait_for_any", wait),
        (loop, "Server", SimulatedServer),
        (loop, "reap_strangers", lambda known: None),
        (verifying, "Hasher", SimulatedHasher),
        (worker_pool, "oom_kills", lambda: 0),
        (run_command, "open_screen", screen),
        (run_command, "say", say),
        (run_command, "become_subreaper", lambda: None),
        (run_command, "raise_oom_priority", lambda: None),
        (run_command, "program_version", lambda: "simulated"),
        *((module, "versions", dict) for module in (saving, train, validate)),
        (page, "write_report", lambda run: None),
    ]
    if world.draw.random() < 0.5:  # as if checkpoints were large
        changes += [(commit, "INLINE_BYTES", 0), (saving, "INLINE_BYTES", 0)]
    changes += [
        (module, "crash_point", lambda name: world.tick())
        for module in list(sys.modules.values())
        if getattr(module, "crash_point", None) is crash.crash_point
    ]
    undo = [patch.object(place, name, value) for place, name, value in changes]
    launchers = dict.fromkeys(LAUNCHERS, LAUNCHER)
    THE.append(machine)
    try:
        with patch.dict(LAUNCHERS, launchers):  # type: ignore[arg-type]
            for one in undo:
                one.start()
            try:
                yield
            finally:
                world.close()
                for one in reversed(undo):
                    one.stop()
    finally:
        THE.pop()


def master_of(world: World, body: Callable[[], int]) -> Task:
    """A new master process: it knows nothing of signals that an earlier one got."""
    SIGNALS.stops, SIGNALS.checkpoint, SIGNALS.hangup = [], 0, 0
    return world.start("master", body)
