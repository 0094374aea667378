"""The loop's connection to the user: the dashboard or plain lines, the log file, and the keyboard."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.display.browse import Browser, Entry, Page
from orchestrator.display.keys import KeyReader
from orchestrator.display.terminal import Keyboard
from orchestrator.display.view import Live, Memory, View, build_view
from orchestrator.display.wording import harmless_lines
from profiles.metrics import SECONDS
from profiles.schema import Profile
from state import event_kinds
from state.facts import Line
from state.history import EventFacts, History, StepFacts, ValidationFacts
from state.layout import RunDir
from state.reader import Reader

STEPS_SHOWN = 400
EVENTS_SHOWN = 50
LEAST_INTERVAL_S = 0.25
IDLE_INTERVAL_S = 1.0
LOUD = event_kinds.names(
    event_kinds.WARNING,
    event_kinds.UNPARSED,
    event_kinds.CONFLICT,
    event_kinds.OOM_RETRY,
    event_kinds.NOT_FINITE,
    event_kinds.EXHAUSTED,
    event_kinds.MEMORY,
    event_kinds.IMPORT,
    event_kinds.PROBLEMS,
)
"""Types of events that are shown and logged immediately."""


class Display(Protocol):
    """Either of dashboard.Dashboard and plain.Plain."""

    extent: tuple[int, int]

    def update(self, view: View) -> None: ...
    def say(self, text: str) -> None: ...
    def turn_to(self, page: Page | None) -> None: ...
    def close(self, summary: str) -> None: ...


class Judge(Protocol):
    """`pages.Pages`: what judges or reads more than the display is given. A display imports nothing that does."""

    def content(self, name: str, term: str, steps: Sequence[StepFacts], now: Now) -> Sequence[Entry]: ...
    def meter(self, history: History, profile: Profile) -> str: ...


@dataclass(frozen=True)
class Now:
    """What a page about the run as it is needs."""

    history: History
    profile: Profile
    master_pid: int | None
    heartbeat_age_s: float = 0.0


class Screen:
    """Collects facts that change between commits, and passes them to the display."""

    def __init__(
        self, run: RunDir, display: Display, keyboard: Keyboard | None, profile: Profile, *, on_terminal: bool = False
    ) -> None:
        self.run = run
        self.display = display
        self.keys = keyboard
        self.profile = profile
        self.on_terminal = on_terminal
        self.steps: deque[StepFacts] = deque(maxlen=STEPS_SHOWN)
        self.events: deque[EventFacts] = deque(maxlen=EVENTS_SHOWN)
        self.validations: Sequence[ValidationFacts] = ()
        self.newest: Sequence[dict[str, Any]] = ()
        """The newest task, as a row of `reader.examples`."""
        self.dirty = True
        self.shown_at = 0.0
        self.key_reader = KeyReader()
        self.browser = Browser(asks_to_leave=True)
        self.judge: Judge | None = None
        self._memory = Memory()
        self._turned = False
        """Whether a page is shown."""

    # --- facts -----------------------------------------------------------------------------------------------

    def reload(self, reader: Reader) -> None:
        """Reload committed facts after a commit."""
        self.steps = deque(reader.steps(STEPS_SHOWN), maxlen=STEPS_SHOWN)
        self.validations = reader.validations(STEPS_SHOWN)
        self.newest = reader.examples(1)
        self.dirty = True

    def take(self, lines: Sequence[Line]) -> None:
        """Show and log newly ingested lines."""
        for line in lines:
            self.dirty = True
            if line.type == event_kinds.STEP.name:
                metrics = {k: v for k, v in line.data.items() if isinstance(v, int | float)}
                self.steps.append(StepFacts(line.step, 0, float(metrics.get(SECONDS.name, 0.0)), metrics))
            elif line.type == event_kinds.EXAMPLES.name and line.data.get("tasks"):
                self.newest = [{"step": line.step, **line.data["tasks"][-1]}]
            elif line.type in LOUD:
                text = str(line.data.get("text", line.data))
                self.events.append(EventFacts(line.t_wall, 0, line.step, line.type, text))
                self._log(f"worker: {line.type} at step {line.step}: {text}")

    def say(self, text: str) -> None:
        """Write a message to the display and to orchestrator.log."""
        self.events.append(EventFacts(time.time(), 0, 0, event_kinds.MASTER.name, text))
        self.dirty = True
        self._log(text)
        self.display.say(text)

    def note_pruned(self, path: str) -> None:
        """Log a pruned checkpoint without showing it."""
        self._log(f"pruned {path}")

    def _log(self, text: str) -> None:
        with suppress(OSError), self.run.log.open("a", encoding="utf-8") as file:
            file.write(log_text(time.strftime("%Y-%m-%d %H:%M:%S"), text))

    # --- drawing ---------------------------------------------------------------------------------------------

    def render(self, history: History, live: Live) -> None:
        """Draw if something changed (at most four times a second), else once a second."""
        since = live.now - self.shown_at
        if since < LEAST_INTERVAL_S or (not self.dirty and since < IDLE_INTERVAL_S):
            return
        self.shown_at, self.dirty = live.now, False
        self._turn_page(Now(history, self.profile, live.master_pid))
        facts = (self.steps, self.validations, self.events)
        meter = self.judge.meter(history, self.profile) if self.judge is not None else ""
        self.display.update(build_view(history, live, *facts, self.profile, self.newest, meter, self._memory))

    def _turn_page(self, now: Now) -> None:
        """Show the open page as it is now, or the dashboard again."""
        judge, steps = self.judge, self.steps
        page = self.browser.page(lambda name, term: judge.content(name, term, steps, now) if judge is not None else ())
        if page is not None or self._turned:
            self.display.turn_to(page)
        self._turned = page is not None

    # --- people ----------------------------------------------------------------------------------------------

    def keyboard(self) -> list[int]:
        return self.keys.sources() if self.keys else []

    def read_keys(self) -> bytes:
        """Keys pressed since the last call."""
        return self.keys.read() if self.keys is not None else b""

    def press(self, data: bytes) -> list[str]:
        """Turn pages of the display. Returns the keys that are for the run."""
        keys = self.key_reader.read(data)
        if not keys:
            return []
        self.browser.extent = self.display.extent
        self.dirty, self.shown_at = True, 0.0
        return self.browser.press(keys)

    def leave(self, text: str) -> None:
        """Give the terminal back with a last word, and go on without it."""
        from orchestrator.display.plain import Plain

        if self.keys is not None:
            self.keys.close()
        self.display.close(text)
        self.display = Plain(None)
        self._log(text)

    def go_headless(self) -> None:
        """Continue without the terminal, logging only to orchestrator.log. Output to a file or pipe is unaffected."""
        from orchestrator.display.plain import Plain

        if self.keys is not None:
            self.keys.close()
        if not self.on_terminal:
            return
        self.display.close("")
        self.display = Plain(None)
        self._log("the terminal is gone; going on without it")

    def close(self, summary: str) -> None:
        if self.keys is not None:
            self.keys.close()
        self._log(summary)
        self.display.close(summary)


def log_text(moment: str, text: str) -> str:
    """Format `text` for orchestrator.log, so that it can neither control a terminal nor forge a log line. (pure)

    Each entry starts with a time; its further lines are indented.
    """
    first, *more = harmless_lines(text).split("\n")
    return "".join([f"{moment} {first}\n", *(f"{' ' * len(moment)} {line}\n" for line in more)])
