"""Fills the pages of the dashboard, and `events`, `metrics` and `samples`, from the store, the log and rollout files.

Everything comes from workers or from what a model wrote, so it is made harmless here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

from orchestrator.display.browse import Entry
from orchestrator.display.glyphs import sparkline
from orchestrator.display.screen import Now
from orchestrator.display.view import EVENT_WORDS
from orchestrator.display.wording import count, harmless
from orchestrator.explaining import page_of
from orchestrator.nearness import Nearness, nearest
from orchestrator.sample_reader import SampleReader
from orchestrator.sampled import LONGEST_TEXT, sample_entries
from profiles.schema import Profile
from state import event_kinds
from state.history import EventFacts, History, StepFacts
from state.layout import RunDir
from state.reader import Reader

EVENTS_SHOWN = 2000
LOG_BYTES = 1 << 18
"""Of the end of orchestrator.log."""
NEWEST_STEPS = 20
CURVE = 24
CURVE_STEPS = 240
METER_CELLS = 10
BRIEF = event_kinds.names(event_kinds.CHECKPOINT, event_kinds.STARTED)
"""Events whose numbers say enough in a line."""
ALARMS = event_kinds.names(
    event_kinds.NOT_FINITE, event_kinds.OOM_RETRY, event_kinds.UNPARSED, event_kinds.CONFLICT, event_kinds.WARNING
)


# --- events ----------------------------------------------------------------------------------------------------------


def events_of(run: RunDir, reader: Reader, term: str, limit: int) -> list[EventFacts]:
    """The newest events of workers and messages of the master that contain the term, oldest first."""
    told = [one for one in log_events(run.log) if contains(one, term)]
    found = sorted([*reader.events_with(term, limit), *told], key=lambda event: event.at)
    return found[-limit:]


def contains(event: EventFacts, term: str) -> bool:
    return term.lower() in f"{event.type} {event.text}".lower()


def log_events(log: Path) -> list[EventFacts]:
    """What the master wrote into the end of its log: its own messages, without what it repeats of workers."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    found: list[EventFacts] = []
    for line in lines:
        with suppress(ValueError, OverflowError):
            at = time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S"))
            if not line[20:].startswith("worker: "):
                found.append(EventFacts(at, 0, 0, event_kinds.MASTER.name, line[20:]))
    return found


def event_entries(events: Sequence[EventFacts]) -> list[Entry]:
    return [Entry((event_line(one),), "bold #ff5f5f" if one.type in ALARMS else "") for one in events]


def event_line(event: EventFacts) -> str:
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(event.at))
    where = f" step {event.step}" if event.step else ""
    is_brief = event.type in BRIEF
    who = "" if event.type == event_kinds.MASTER.name else f"{event.type}{where if not is_brief else ''}: "
    words = EVENT_WORDS[event.type] if is_brief else ""
    text = words.format(step=event.step, cycle=event.cycle, text=event.text) if words else event.text[:LONGEST_TEXT]
    return f"{when}  {who}{harmless(text)}"


# --- metrics ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """One metric over the newest steps that report it. values: oldest first."""

    name: str
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        return self.values[-1]

    @property
    def mean(self) -> float:
        newest = self.values[-NEWEST_STEPS:]
        return fsum(value / len(newest) for value in newest)  # the sum of the largest floats would be none

    def as_json(self) -> dict[str, Any]:
        newest = self.values[-NEWEST_STEPS:]
        return {
            "last": self.last,
            "mean": self.mean,
            "min": min(newest),
            "max": max(newest),
            "steps": len(newest),
        }


def metrics_of(steps: Sequence[StepFacts], terms: Sequence[str] = ()) -> list[Metric]:
    """Metrics whose name contains one of the terms (all without any), by name. steps: oldest first."""
    values: dict[str, list[float]] = {}
    for step in steps[-CURVE_STEPS:]:
        for name, value in step.metrics.items():
            if isinstance(value, int | float) and value == value:
                values.setdefault(name, []).append(float(value))
    wanted = [term.lower() for term in terms if term]
    chosen = [name for name in sorted(values) if not wanted or any(term in name.lower() for term in wanted)]
    return [Metric(harmless(name), tuple(values[name])) for name in chosen]


def metric_lines(metrics: Sequence[Metric], curve: int = CURVE) -> list[str]:
    """A title and a line for each: name, last value, mean of the newest steps, curve."""
    if not metrics:
        return []
    width = min(40, max(len("metric"), *(len(one.name) for one in metrics)))
    lines = [f"{'metric':<{width}}  {'last':>10}  {f'mean of {NEWEST_STEPS}':>10}  newest steps".rstrip()]
    for one in metrics:
        name = one.name if len(one.name) <= width else f"{one.name[: width - 1]}…"
        lines.append(f"{name:<{width}}  {number(one.last):>10}  {number(one.mean):>10}  {sparkline(one.values, curve)}")
    return lines


def number(value: float) -> str:
    """`12,400`, `0.953`, `1.5e-06`."""
    if value == int(value) and abs(value) < 1e15:
        return count(value)
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def metric_entries(steps: Sequence[StepFacts], term: str) -> list[Entry]:
    lines = metric_lines(metrics_of(steps, [term]))
    return [Entry((line,), "dim" if not place else "", is_cut=True) for place, line in enumerate(lines)]


# --- all -------------------------------------------------------------------------------------------------------------


class Pages:
    """What the display asks of the rest of the master. Judges and reads again only what has changed."""

    def __init__(self, run: RunDir, reader: Reader) -> None:
        self.run = run
        self.reader = reader
        self._known: tuple[tuple[Any, ...], list[Entry]] = ((), [])
        self._samples = SampleReader(run)
        self._meter: tuple[tuple[Any, ...], str] = ((), "")

    def content(self, name: str, term: str, steps: Sequence[StepFacts], now: Now) -> list[Entry]:
        """The entries of a page. steps: the newest, oldest first."""
        if name == "samples":
            found = self._samples.poll()
            return sample_entries(found, term) if found is not None else [Entry(("reading…",), "dim")]
        if name == "explain":
            key: tuple[Any, ...] = (name, id(now.history))
        elif name == "metrics":
            key = (name, term, len(steps), steps[-1].step if steps else 0)
        else:
            version = self.reader.connection.execute("PRAGMA data_version").fetchone()[0]
            key = (name, term, version, int(time.monotonic()) if name == "events" else 0)
        if key != self._known[0]:
            self._known = (key, self._made(name, term, steps, now))
        return self._known[1]

    def _made(self, name: str, term: str, steps: Sequence[StepFacts], now: Now) -> list[Entry]:
        if name == "explain":
            said = page_of(now.history, now.profile, list(steps), now.master_pid, now.heartbeat_age_s)
            return [Entry((harmless(line),)) for line in said]
        if name == "events":
            return event_entries(events_of(self.run, self.reader, term, EVENTS_SHOWN))
        return metric_entries(list(steps), term)

    def meter(self, history: History, profile: Profile) -> str:
        """How near the stagnation rule is to firing, in words. Judged once a cycle: a long window takes a while."""
        current, recent = history.current, history.recent
        key = (len(recent), recent[-1].cycle if recent else -1, current and (current.cycle, current.state))
        if key != self._meter[0]:
            found = nearest(history, profile.stagnation)
            self._meter = (key, meter_text(found) if found is not None else "")
        return self._meter[1]


def meter_text(found: Nearness) -> str:
    """`stagnation ▰▰▰▱▱▱▱▱▱▱ plateau 30 %`."""
    full = int(found.share * METER_CELLS)
    return f"stagnation {'▰' * full}{'▱' * (METER_CELLS - full)} {found.words}"
