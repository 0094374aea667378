"""Show the dashboard of a run started in another terminal.

Reads the store once a second and changes nothing. `q` or Ctrl+C leaves, `?` explains; the run goes on.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass

from orchestrator.alive import master_pid, rss_bytes, worker_pid
from orchestrator.display.screen import PAGE
from orchestrator.display.view import Live, View, build_view
from orchestrator.explaining import page_of
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
QUIT = b"qQ\x03\x04"


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
    is_explained = False
    try:
        while display.is_open:
            display.update(watched.view(time.time(), time.monotonic()))
            keys = pressed(keyboard.sources(), signals)
            if keys is None or set(keys) & set(QUIT):
                break
            is_explained ^= bool(keys.count(b"?") % 2)
            display.turn_to(PAGE, watched.page(time.time()) if is_explained else ())
    finally:
        display.close("")
        keyboard.close()
        watched.reader.close()
    return 0


def pressed(sources: list[int], signals: Signals) -> bytes | None:
    """Wait for keys, a signal or the next poll; the keys. None: a stop signal came, or the keyboard is lost."""
    try:
        ready = wait_for_any([*sources, signals.wake_reader], POLL_S)
        signals.drain()
        found = [os.read(fd, 64) for fd in ready if fd != signals.wake_reader]
    except OSError:
        return None
    if signals.stops or signals.hangup or not all(found):
        return None
    return b"".join(found)


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
        self._page: tuple[_Rows, list[str]] | None = None

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
        return build_view(
            history, live, rows.steps, rows.validations, rows.events, rows.profile, examples=rows.examples
        )

    def page(self, utc: float) -> list[str]:
        """The sentences of `explain`."""
        rows = self.rows()
        age = max(0.0, utc - rows.history.heartbeat_at)
        if self._page is None or self._page[0] is not rows:
            said = page_of(rows.history, rows.profile, rows.steps, master_pid(self.run_dir, age), age)
            self._page = rows, said
        return self._page[1]

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
