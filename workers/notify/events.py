"""What is worth telling of a run, from two looks at its store. (pure)"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from profiles.harmless import harmless
from state.states import RunState

ENDED = {RunState.FINISHED: "finished", RunState.STOPPED: "stopped", RunState.STAGNANT: "stagnant"}


class Best(Struct, frozen=True):
    """The best validation of a suite."""

    checkpoint_id: str
    step: int
    accuracy: float
    n: int


class Look(Struct, frozen=True):
    """What the store says. cycles: (number, verdict, evidence) of those committed after the last look's newest."""

    state: str = ""
    reason: str = ""
    changed_at: float = 0.0
    """UTC seconds of the last sign of life, which is when the state was set if nobody trains."""
    step: int = 0
    bests: dict[str, Best] = {}
    cycles: list[tuple[int, str, str]] = []

    @property
    def newest_cycle(self) -> int:
        return max((cycle for cycle, _, _ in self.cycles), default=-1)


class Known(Struct):
    """What was seen before. Without it, all that there is counts as seen."""

    state: str = ""
    changed_at: float = 0.0
    cycle: int = -1
    bests: dict[str, Best] = {}
    best_told_at: float = 0.0


class Event(Struct, frozen=True):
    """What a command gets as JSON. id: the same however often it is sent. at: UTC seconds."""

    id: str
    kind: str
    run: str
    run_id: str
    at: float
    step: int
    title: str
    text: str
    facts: Mapping[str, Any] = {}
    again: bool = False
    """Whether an earlier try may have arrived: the process was killed, or its answer was lost."""


def events_of(run: str, run_id: str, known: Known, look: Look, now: float, best_every_s: float) -> Iterator[Event]:
    """Yield the events between two looks, and update `known`. A new best that comes too soon is told later."""
    run = harmless(run)

    def event(kind: str, key: str, title: str, text: str, **facts: Any) -> Event:
        return Event(f"{run_id}:{key}", kind, run, run_id, now, look.step, f"{run}: {title}", harmless(text), facts)

    is_new = (look.state, look.changed_at) != (known.state, known.changed_at)
    if is_new and look.state in ENDED:
        text = f"step {look.step:,}; {look.reason}{_scores(look.bests)}"
        yield event("end", f"end:{look.changed_at}", ENDED[RunState(look.state)], text, state=look.state)
    if is_new and look.state == RunState.FAILED:
        yield event("crash", f"crash:{look.changed_at}", "failed", f"step {look.step:,} is saved; {look.reason}")
    if look.state == RunState.PAUSED and known.state != RunState.PAUSED:
        yield event("disk", f"disk:{look.changed_at}", "paused, the disk is full", look.reason)
    if known.state == RunState.PAUSED and look.state == RunState.RUNNING:
        yield event("disk", f"room:{known.changed_at}", "goes on", "there is room on the disk again")
    for cycle, verdict, evidence in look.cycles:
        kind, _, action = verdict.partition(":")
        if cycle > known.cycle and kind not in ("", "go"):
            title = f"{kind.replace('_', ' ')}, so: {action}"
            yield event("stagnation", f"stagnation:{cycle}", title, evidence, cycle=cycle, verdict=kind, action=action)
    yield from _bests(event, known, look, now, best_every_s)
    known.state, known.changed_at = look.state, look.changed_at
    known.cycle = max(known.cycle, look.newest_cycle)


def _bests(event: Any, known: Known, look: Look, now: float, best_every_s: float) -> Iterator[Event]:
    is_last = look.state not in (RunState.RUNNING, RunState.PAUSED)
    is_soon = 0 <= now - known.best_told_at < best_every_s and not is_last  # below 0: the clock was set back
    for suite, best in look.bests.items():
        before = known.bests.get(suite)
        if before is not None and best.accuracy > before.accuracy:
            if is_soon:
                continue
            text = f"{suite} {best.accuracy:.3f} of {best.n} at step {best.step:,}, before {before.accuracy:.3f}"
            key = f"best:{suite}:{best.checkpoint_id}"
            yield event("best", key, "new best", text, suite=suite, accuracy=best.accuracy, before=before.accuracy)
            known.best_told_at = now
        known.bests[suite] = best


def vanished(run: str, run_id: str, look: Look, now: float) -> Event:
    """The master is gone without a word: killed, or the power failed for it alone."""
    run = harmless(run)
    text = f"the master ended without a word (killed?); step {look.step:,} is saved; `run --run {run}` goes on from it"
    key = f"{run_id}:vanished:{now}"  # changed_at is 0 while it trains: the next crash is another one
    return Event(key, "crash", run, run_id, now, look.step, f"{run}: crashed", text, {"state": look.state})


def trial(run: str, run_id: str) -> Event:
    """What `notify --test` sends."""
    now = time.time()
    text = "this is a test; nothing happened to the run"
    return Event(f"{run_id}:test:{now}", "test", harmless(run), run_id, now, 0, f"{harmless(run)}: test", text)


def _scores(bests: Mapping[str, Best]) -> str:
    return "".join(f"; best {suite} {best.accuracy:.3f} at step {best.step:,}" for suite, best in bests.items())
