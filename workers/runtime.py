"""Runs one attempt, from its spec to result.json: events, stages and their durations, and the outcome.

The caller passes training or validation as a function; this module depends on neither.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from profiles.errors import ExitCode, LonghaulError
from state import event_kinds
from state.durable import Appender, write_file
from state.event_kinds import EventKind
from state.layout import AttemptDir, RunDir
from workers.contract import CONTRACT_VERSION, CheckpointRef, Event, Message, Outcome, Result, WorkerSpec
from workers.control import Control
from workers.failures import LIMIT_ERRORS, exit_code_of, is_unordered
from workers.mailbox import last_seq

log = logging.getLogger("worker")


@dataclass
class Stage:
    """A stage that has begun. inner_s: seconds of the stages inside it."""

    name: str
    inner_s: float = 0.0


class Attempt:
    """A trainer's view of the outside: its spec, its directories, and how to report events and progress."""

    def __init__(self, spec: WorkerSpec, control: Control, restart: int = 0) -> None:
        """restart: how many times a scheduler has restarted this attempt's job; events continue the earlier `seq`."""
        self.spec = spec
        self.profile = spec.profile
        self.control = control
        self.run = RunDir(Path(spec.run_dir))
        self.dir = AttemptDir(self.run.root / spec.attempt_dir)
        self.saved: CheckpointRef | None = spec.head
        """The newest checkpoint known to be durable."""
        self.step = 0
        self.drawn_step = 0
        """Step whose rollouts are drawn, or were last: the next one, if they are drawn beside an update."""
        self._seq = last_seq(self.dir) if restart else 0
        self._seconds: dict[str, float] = {}
        self._stages: list[Stage] = []
        """Those that have begun and not ended; each is a part of the one before."""
        self._telling = threading.Lock()
        self._events = Appender(self.dir.events)
        if restart:
            self.step = spec.first_step - 1
            self.event(event_kinds.RESTARTED, restart=restart)

    def event(self, kind: EventKind, /, **data: Any) -> None:
        """Append an event of the current step to events.jsonl, and send the master a hint.

        Raises ValueError if `data` does not match what the kind declares.
        """
        kind.check(data)
        with self._telling:  # a thread may draw rollouts meanwhile
            self._seq += 1
            event = Event(
                seq=self._seq, type=kind.name, step=self.step, t_wall=time.time(), t_mono=time.monotonic(), data=data
            )
            self._events.append(msgspec.json.encode(event))
        self.control.hint()

    def sync(self) -> None:
        """Flush all events to disk. Call it before a checkpoint, so that no checkpoint outlives the events of its
        steps."""
        self._events.sync()

    def warn(self, text: str) -> None:
        log.warning(text)
        self.event(event_kinds.WARNING, text=text)

    def at(self, step: int, stage: str) -> None:
        """Report the current step and stage. The master measures its deadlines between these reports."""
        self.step = self.drawn_step = step
        self.control.at(step, stage)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Report the stage `name`, and add the block's duration, less that of stages inside it, to the step's seconds
        of that stage. For the main thread."""
        self.control.at(self.step, name)
        mine = Stage(name)
        self._stages.append(mine)
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self._stages.pop()
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds - mine.inner_s
            if self._stages:
                self._stages[-1].inner_s += seconds
                self.control.at(self.step, self._stages[-1].name)

    def seconds_of(self, name: str) -> float:
        """Seconds spent in the stage since the last `take_seconds`."""
        return self._seconds.get(name, 0.0)

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds per stage since the last call, and reset them."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def finish(self, result: Result) -> None:
        """Make the result durable, then report it. The process must exit next."""
        self.event(event_kinds.DONE, outcome=result.outcome.value, exit_code=result.exit_code)
        self._events.close()
        write_file(self.dir.result, msgspec.json.encode(result))
        self.control.send(Message(type="done", step=result.last_step, reason=result.outcome.value))

    def abandon(self, error: LonghaulError) -> NoReturn:
        """End this process from another thread, while the main thread waits for something that will never arrive."""
        log.error("attempt abandoned: %s", error)
        result = failure(self.spec, error, self.saved)
        with suppress(OSError, LonghaulError):
            write_file(self.dir.result, msgspec.json.encode(result))
        os._exit(result.exit_code)


class SpecError(Exception):
    """spec.json is unusable. Only the log can report it, because the attempt's directory is unknown."""

    def __init__(self, text: str, exit_code: ExitCode) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def read_spec(path: Path, token: str) -> WorkerSpec:
    """Read the spec at `path`.

    Raises SpecError: exit code 64 if it cannot be decoded or belongs to another attempt, 65 for another contract
    version.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes())
        version = raw["version"] if isinstance(raw, dict) and "version" in raw else CONTRACT_VERSION
        if version != CONTRACT_VERSION:
            raise SpecError(f"{path}: contract {version}, this worker speaks {CONTRACT_VERSION}", ExitCode.VERSION)
        spec = msgspec.convert(raw, WorkerSpec)
    except (OSError, msgspec.MsgspecError) as error:
        raise SpecError(f"{path}: {error}", ExitCode.SPEC) from error
    if spec.token != token:
        raise SpecError(f"{path}: meant for the attempt {spec.token!r}, this one is {token!r}", ExitCode.SPEC)
    return spec


def carry_out(spec: WorkerSpec, control: Control, job: Callable[[Attempt], Result], restart: int = 0) -> int:
    """Run one attempt, always write its result if possible, and return the exit code."""
    attempt: Attempt | None = None
    try:
        attempt = Attempt(spec, control, restart)
        result = job(attempt)
    except Exception as error:
        log.error("attempt failed: %s\n%s", error, traceback.format_exc())
        saved = attempt.saved if attempt else spec.head
        result = failure(spec, error, saved)
    if attempt is None:
        return result.exit_code
    try:
        attempt.finish(result)
    except (OSError, LonghaulError) as error:
        log.error("the result could not be written: %s", error)
        return result.exit_code or exit_code_of(error)
    return result.exit_code


def failure(spec: WorkerSpec, error: Exception, saved: CheckpointRef | None) -> Result:
    """The result of an attempt that ended with an exception. (pure)"""
    advice = error.next_command if isinstance(error, LonghaulError) else ""
    if isinstance(error, OSError) and error.errno in LIMIT_ERRORS:
        advice = f"raise the limit of {LIMIT_ERRORS[error.errno]}"
    if is_unordered(error):
        advice = "the same command with --set run.deterministic=false"
    return Result(
        token=spec.token,
        role=spec.role,
        outcome=Outcome.FAILED,
        exit_code=exit_code_of(error),
        last_step=saved.step if saved else 0,
        checkpoint=saved,
        error=f"{type(error).__name__}: {error}" if not isinstance(error, LonghaulError) else error.what,
        advice=advice,
    )
