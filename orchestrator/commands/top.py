"""Show the dashboard of a run started in another terminal, and steer it with the same keys.

Reads the store once a second. `q` or Ctrl+C leaves, and the run goes on. Keys that steer ask the run's master, as the
commands `pause`, `validate`, `cycles` and `checkpoint` do.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.alive import master_pid, rss_bytes, worker_pid
from orchestrator.control import Call
from orchestrator.display.browse import Browser, Page
from orchestrator.display.keys import KeyReader
from orchestrator.display.screen import Now
from orchestrator.display.view import Live, Memory, View, build_view
from orchestrator.pages import Pages
from orchestrator.ready import wait_for_any
from orchestrator.runs import find_run
from orchestrator.signals import Signals
from profiles.errors import ExitCode, LonghaulError
from profiles.load import from_json
from profiles.schema import Profile
from state.history import AttemptFacts, EventFacts, History, StepFacts, ValidationFacts
from state.layout import RunDir
from state.reader import Reader
from state.states import UNDER_A_MASTER

STEPS, VALIDATIONS, EVENTS = 480, 400, 24
POLL_S = 1.0
QUIT = frozenset({"q", "Q", "ctrl-c", "ctrl-d"})
STEER = {"p": "pause", "v": "validate", "+": "cycles", "-": "cycles", "ctrl-x": "checkpoint"}
"""Key -> the command that it sends to the master; p sends `resume` to a paused run."""
MOST_CALLS = 4
"""Requests that wait for their answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only the common arguments."""


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from orchestrator.display.dashboard import Dashboard, suits
    from orchestrator.display.terminal import Keyboard
    from orchestrator.display.tiles import TOP_KEYS

    run_dir = find_run(args)
    console = Console()
    if not suits(console):
        raise LonghaulError(
            "top needs a terminal that can move the cursor and display UTF-8",
            kept="the run, unchanged",
            next_command=f"python -m orchestrator status --run {run_dir.name}",
            exit_code=ExitCode.USAGE,
        )
    watched = Watched(run_dir, Reader.open(run_dir))
    # Flags, not exceptions: an exception raised inside a destructor is lost, and the key press with it.
    signals = Signals()
    signals.install()
    keyboard = Keyboard()
    display = Dashboard(console, TOP_KEYS)
    reader, browser, calls = KeyReader(), Browser(), Calls(run_dir)
    try:
        while display.is_open:
            display.turn_to(watched.page(browser, time.time()))
            display.update(watched.view(time.time(), time.monotonic()))
            data = pressed(keyboard.sources(), calls.sources(), signals)
            for text in calls.answers():
                display.say(text)
            if data is None:
                break
            browser.extent = display.extent
            left = browser.press(reader.read(data))
            if set(left) & QUIT:
                break
            for key in left:
                if key in STEER:
                    display.say(calls.send(key, is_paused=watched.rows().history.paused_at is not None))
    finally:
        calls.close()
        display.close("")
        keyboard.close()
        watched.reader.close()
    return 0


def pressed(keyboard: list[int], calls: list[int], signals: Signals) -> bytes | None:
    """Wait for keys, an answer, a signal or the next poll; the keys. None: a stop signal, or no keyboard."""
    try:
        ready = wait_for_any([*keyboard, *calls, signals.wake_reader], POLL_S)
        signals.drain()
        found = [os.read(fd, 64) for fd in ready if fd in keyboard]
    except OSError:
        return None
    if signals.stops or signals.hangup or not all(found):
        return None
    return b"".join(found)


class Calls:
    """Requests to the master that wait for their answer."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self._waiting: list[Call] = []

    def sources(self) -> list[int]:
        return [call.fileno() for call in self._waiting]

    def send(self, key: str, *, is_paused: bool) -> str:
        """Ask the master for what the key stands for. Returns what to say meanwhile."""
        command = "resume" if key == "p" and is_paused else STEER[key]
        change = f"{key}1" if command == "cycles" else ""
        if len(self._waiting) >= MOST_CALLS:
            return f"{command}: {MOST_CALLS} requests wait for their answer already"
        try:
            self._waiting.append(Call(self.run_dir, command, change))
        except LonghaulError as error:
            return f"{command}: {error.what}"
        return f"asked: {command} {change}".rstrip()

    def answers(self) -> list[str]:
        """What came since the last call, in words."""
        found = []
        for call in list(self._waiting):
            if (answer := call.take()) is not None:
                self._waiting.remove(call)
                found.append(f"{call.command}: {answer_text(answer)}")
        return found

    def close(self) -> None:
        for call in self._waiting:
            with suppress(OSError):
                call.close()


def answer_text(answer: Mapping[str, Any]) -> str:
    """A master's answer in a few words."""
    if not answer.get("ok"):
        return str(answer.get("error"))
    if "max_cycles" in answer:
        most = answer["max_cycles"]
        return f"cycle {answer['cycle']} of {most}" if most else f"cycle {answer['cycle']}, without a limit"
    if "validation" in answer:
        found = answer["validation"]
        return f"step {found['step']} has {found['metrics']['mean']['accuracy']:.3f} on {found['suite']}"
    step = f"step {answer['step']}" if "step" in answer else "done"
    return f"{answer.get('note', '')} ({step})".strip()


@dataclass(frozen=True)
class _Rows:
    """A snapshot of the store."""

    history: History
    profile: Profile
    steps: tuple[StepFacts, ...]
    validations: tuple[ValidationFacts, ...]
    events: tuple[EventFacts, ...]
    examples: tuple[dict[str, object], ...]
    attempts: tuple[AttemptFacts, ...]


class Watched:
    """A run watched from another process. Reads the store again only when it has changed."""

    def __init__(self, run_dir: RunDir, reader: Reader) -> None:
        self.run_dir = run_dir
        self.reader = reader
        self._version = -1
        self._rows: _Rows | None = None
        self.pages = Pages(run_dir, reader)
        self._memory = Memory()

    def view(self, utc: float, monotonic: float) -> View:
        rows = self.rows()
        history = rows.history
        master = master_pid(self.run_dir, max(0.0, utc - history.heartbeat_at))
        worker = worker_pid(rows.attempts, master) if master is not None else None
        role = rows.attempts[-1].role if worker is not None else ""
        live = Live(
            master_pid=master or 0,
            worker_pid=worker,
            role=role,
            stage=rows.attempts[-1].state.value if worker is not None else "",
            worker_rss_bytes=rss_bytes(worker),
            master_rss_bytes=rss_bytes(master) or 0,
            note="interrupted: no master holds this run" if is_interrupted(history, master) else "",
            now=monotonic,
        )
        facts = (rows.steps, rows.validations, rows.events)
        meter = self.pages.meter(history, rows.profile)
        return build_view(history, live, *facts, rows.profile, rows.examples, meter, self._memory)

    def page(self, browser: Browser, utc: float) -> Page | None:
        """The page that is open."""
        if not browser.name:
            return None
        rows = self.rows()
        age = max(0.0, utc - rows.history.heartbeat_at)
        now = Now(rows.history, rows.profile, master_pid(self.run_dir, age), age)
        return browser.page(lambda name, term: self.pages.content(name, term, rows.steps, now))

    def rows(self) -> _Rows:
        """The store's rows. SQLite's data_version tells whether another process has written since."""
        version = int(self.reader.connection.execute("PRAGMA data_version").fetchone()[0])
        if self._rows is None or version != self._version:
            reader = self.reader
            self._rows = _Rows(
                history=reader.history(),
                profile=from_json(reader.profile_json()),
                steps=reader.steps(STEPS),
                validations=reader.validations(VALIDATIONS),
                events=reader.events(EVENTS),
                examples=tuple(reader.examples(1)),
                attempts=reader.open_attempts(),
            )
            self._version = version
        return self._rows


def is_interrupted(history: History, master: int | None) -> bool:
    return history.state in UNDER_A_MASTER and master is None
