"""Time, tasks and faults of one schedule. Everything that happens is drawn from its seed.

The master and each worker are greenlets that run their real code. They change places where a real process could be
stopped, killed or kept waiting: at each wait, write, sync, rename, transaction and crash point. Seconds pass only
where everybody waits.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NoReturn

import greenlet

BIRTH = 1_700_000_000.0
"""The wall clock at the beginning, in UTC seconds."""
FOREVER = float("inf")


class Violation(BaseException):
    """What must never be: the simulator found a defect. No `except Exception` of a worker may catch it."""


@dataclass(eq=False)
class Task:
    """One process. wake_at: when it goes on. held_until: a signal has stopped it, or it hangs, until then."""

    name: str
    body: Callable[[], Any]
    wake_at: float = 0.0
    held_until: float = 0.0
    waits: bool = False
    """Whether something that arrives may end its wait."""
    is_over: bool = False
    result: Any = None
    error: BaseException | None = None
    connections: list[sqlite3.Connection] = field(default_factory=list)
    locks: list[Any] = field(default_factory=list)
    helpers: list[Task] = field(default_factory=list)
    """Its threads."""
    let: greenlet.greenlet | None = None

    def runs_at(self) -> float:
        return max(self.wake_at, self.held_until)


@dataclass
class Disk:
    """full_until, slow_until: when the disk has room again, and when it is quick again. errors: calls to fail."""

    full_until: float = 0.0
    slow_until: float = 0.0
    errors: list[int] = field(default_factory=list)


class World:
    """One schedule: `run` lets tasks take turns until `until` holds."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.now = 1000.0
        self.wall = BIRTH
        """What the wall clock is ahead of `now`."""
        self.tasks: list[Task] = []
        self.gone: list[Task] = []
        """Killed ones: their code must not run on, not even to clean up, until the schedule is over."""
        self.current: Task | None = None
        self.disk = Disk()
        self.ticks = 0
        self.is_over = False
        self.on_tick: Callable[[], None] = lambda: None
        self.story: list[str] = []
        self._hub = greenlet.getcurrent()
        self._thread = threading.get_ident()

    def is_here(self) -> bool:
        """False in another thread of this process, such as one of the test runner's: no task of ours called."""
        return threading.get_ident() == self._thread

    def caller(self) -> Task | None:
        """The task that calls; None outside of one, and in another thread."""
        return self.current if self.is_here() else None

    # --- time --------------------------------------------------------------------------------------------------

    def utc(self) -> float:
        return self.wall + self.now

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now - 1000:10.3f} {text}")

    # --- tasks -------------------------------------------------------------------------------------------------

    def start(self, name: str, body: Callable[[], Any]) -> Task:
        task = Task(name, body, wake_at=self.now)
        task.let = greenlet.greenlet(lambda: self._work(task), parent=self._hub)
        self.tasks.append(task)
        return task

    def _work(self, task: Task) -> None:
        try:
            task.result = task.body()
        except greenlet.GreenletExit:
            if not (self.is_over or task.is_over):
                task.error = Violation(f"{task.name} ran into another schedule")
        except BaseException as error:
            task.error = error
        if not self.is_over:
            self.end(task)

    def end(self, task: Task) -> None:
        """The task is no more. If it still has code to run, that is never run."""
        if task.is_over:
            return
        task.is_over = True
        self.tasks.remove(task)
        self.gone.append(task)
        for helper in task.helpers:
            self.end(helper)
        _let_go(task)

    def pause(self, seconds: float = 0.0, *, waits: bool = False) -> None:
        """The current task goes on after so many seconds; with `waits`, sooner if something arrives for it."""
        task = self.current
        if self.is_over or task is None or task.is_over:
            self._leave()
        assert task is not None
        task.wake_at, task.waits = self.now + seconds, waits
        self.current = None
        self._hub.switch()
        if self.is_over or task.is_over:
            self._leave()

    def _leave(self) -> NoReturn:
        raise greenlet.GreenletExit

    def arrives(self, task: Task | None, at: float) -> None:
        """Something arrives for the task at that time."""
        if task is not None and task.waits:
            task.wake_at = min(task.wake_at, max(at, self.now))

    def tick(self) -> None:
        """A point where the current task may be interrupted."""
        if not self.is_here():
            return
        if self.current is None:
            if greenlet.getcurrent() is not self._hub:
                self._leave()
            return
        self.ticks += 1
        self.pause()

    def run(self, until: Callable[[], bool], most_ticks: int) -> None:
        """Let tasks take turns. Raises Violation if nobody has anything to do, or after too many ticks."""
        first = self.ticks
        while not until():
            self.on_tick()
            if until():
                return
            if self.ticks - first > most_ticks:
                raise Violation(f"no end after {most_ticks} ticks")
            soonest = min(task.runs_at() for task in self.tasks)
            if soonest == FOREVER:
                raise Violation("nobody will ever do anything")
            self.now = max(self.now, soonest)
            ready = [task for task in self.tasks if task.runs_at() <= self.now]
            self.current = task = ready[0] if len(ready) == 1 else self.draw.choice(ready)
            task.waits = False
            assert task.let is not None
            task.let.switch()
            self.current = None
            if isinstance(task.error, Violation):
                raise task.error

    def close(self) -> None:
        """The schedule is over: what was killed may clean up now, since nothing is left to be harmed."""
        self.is_over = True
        for task in [*self.tasks, *self.gone]:
            self.current = task
            while task.let is not None and not task.let.dead and task.let:
                task.let.throw(greenlet.GreenletExit)
            if not task.is_over:
                self.tasks.remove(task)
                _let_go(task)

    # --- the disk ----------------------------------------------------------------------------------------------

    def use_disk(self, *, writes: bool) -> None:
        """One call to the disk: takes its time, and may fail. Raises OSError."""
        if not self.is_here():
            return
        self.tick()
        if self.now < self.disk.slow_until:
            self.pause(self.draw.choice((0.01, 1.0, 30.0)))
        if self.disk.errors:
            number = self.disk.errors.pop()
            raise OSError(number, os.strerror(number))
        if writes and self.now < self.disk.full_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _let_go(task: Task) -> None:
    """What the kernel does at a process's end: open transactions and locks are gone."""
    for connection in task.connections:
        connection.close()
    for lock in task.locks:
        lock._close()
