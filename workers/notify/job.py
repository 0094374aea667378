"""Looks at a run's store every two seconds, notes what is worth telling, and sends it.

Only reads the store. Whatever goes wrong here, the run does not hear of it but for one line for each target.
"""

from __future__ import annotations

import logging
import os
import select
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from profiles.errors import LonghaulError
from state.opening import read_only
from state.states import UNDER_A_MASTER, RunState
from workers.line_contract import Note, NotifySpec
from workers.lines import Say
from workers.notify.events import Best, Event, Known, Look, events_of, vanished
from workers.notify.outbox import Outbox, OutboxFile, tried
from workers.notify.targets import Target, targets_of

LOOK_EVERY_S = 2.0
LAST_WORDS_S = 180.0
"""For what is left once the master is gone; the rest is sent at the next start."""
GOODBYE = b"."
"""What the master writes before it ends; an end without it is a crash of the master."""


class Notifier:
    """Owns the outbox. environment: with the variables that hold URLs and what the command gets."""

    def __init__(self, spec: NotifySpec, say: Say, environment: Mapping[str, str]) -> None:
        self._spec, self._say = spec, say
        self.targets, problems = targets_of(spec.notify, environment)
        hidden = {spec.notify.urls_env}
        self._environment = {name: value for name, value in environment.items() if name not in hidden}
        for problem in problems:
            self._tell(problem)
        self._file = OutboxFile(Path(spec.folder))
        self._store = read_only(Path(spec.store))
        self._version, self._seen = -1, Look()
        self._told: set[str] = set()

    @property
    def outbox(self) -> Outbox:
        return self._file.outbox

    @property
    def seen(self) -> Look:
        """What the last look saw."""
        return self._seen

    def _tell(self, text: str) -> None:
        with suppress(OSError):  # the master that would show it is gone: the other targets get their messages
            self._say(Note(text))

    def _save(self) -> None:
        try:
            self._file.save()
        except (OSError, LonghaulError):  # a full disk, of which somebody is to hear all the same
            logging.exception("the outbox cannot be written")

    def close(self) -> None:
        self._store.close()
        self._file.close()

    def look(self) -> Look:
        """Note what has happened since the last look."""
        spec, outbox, now = self._spec, self.outbox, time.time()
        (version,) = self._store.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._seen = look_at(self._store, outbox.known.cycle if outbox.known is not None else -1)
            self._version = version
        seen = self._seen
        if outbox.known is None:  # what was there before the first look is no news
            outbox.known = Known(spec.was_state, spec.was_changed_at, seen.newest_cycle, dict(seen.bests))
            self._save()
        before = msgspec.json.encode(outbox.known)
        for event in events_of(spec.name, spec.run_id, outbox.known, seen, now, spec.notify.best_every_minutes * 60):
            self._add(event)
        if msgspec.json.encode(outbox.known) != before:
            self._save()
        return seen

    def master_vanished(self, seen: Look) -> None:
        self._add(vanished(self._spec.name, self._spec.run_id, seen, time.time()))
        self._save()

    def _add(self, event: Event) -> None:
        if event.kind in self._spec.notify.on:
            self.outbox.add(event, [target.name for target in self.targets])

    def send(self, now: float) -> None:
        """Try what is due, each target once."""
        targets = {target.name: target for target in self.targets}
        for message, name, delivery in self.outbox.due(now):
            again = delivery.tries > 0
            delivery.tries += 1
            self._save()
            target = targets.get(name)
            error = "no such target any more" if target is None else self._sent(target, message.event, again)
            tried(delivery, error, 0 if target is None else self._spec.notify.retries, time.time())
            self._save()
            if delivery.state == "failed" and name not in self._told:
                self._told.add(name)
                self._tell(f"{name} did not take a message: {error}")

    def _sent(self, target: Target, event: Event, again: bool) -> str:
        """Try once; returns why it failed."""
        return target.send(msgspec.structs.replace(event, again=again), self._spec.notify.timeout_s, self._environment)


def look_at(store: sqlite3.Connection, after_cycle: int) -> Look:
    """What the store says now. after_cycle: newest cycle that was seen before."""
    state, reason, at, step = store.execute(
        "SELECT state, stop_reason, heartbeat_at, coalesce((SELECT step FROM checkpoints WHERE checkpoint_id=head), 0)"
        " FROM runs"
    ).fetchone()
    cycles = store.execute(
        "SELECT cycle, verdict, evidence FROM cycles WHERE state='committed' AND cycle>? ORDER BY cycle", [after_cycle]
    ).fetchall()
    bests = {}
    for (suite,) in store.execute("SELECT DISTINCT suite FROM validations").fetchall():
        bests[suite] = Best(
            *store.execute(
                "SELECT checkpoint_id, step, accuracy, n FROM validations WHERE suite=?"
                " ORDER BY accuracy DESC, step LIMIT 1",
                [suite],
            ).fetchone()
        )
    changed_at = 0.0 if state == RunState.RUNNING else at  # a heartbeat moves it while a master trains
    return Look(state, reason, changed_at, step, bests, cycles)


def serve_run(notifier: Notifier, stdin: int) -> None:
    """Look and send until the master says goodbye or is gone; then send what is left, as long as tries are allowed."""
    is_there, said = True, b""
    while is_there:
        if select.select([stdin], [], [], LOOK_EVERY_S)[0]:
            got = os.read(stdin, 4096)
            said += got
            is_there = bool(got) and GOODBYE not in said
        _quietly(notifier)
    if GOODBYE not in said and notifier.seen.state in UNDER_A_MASTER:
        notifier.master_vanished(notifier.seen)
    ends = time.monotonic() + LAST_WORDS_S
    notifier.send(time.time())
    while notifier.outbox.is_pending() and time.monotonic() < ends:
        time.sleep(0.5)
        notifier.send(time.time())


def _quietly(notifier: Notifier) -> None:
    """A store that is busy or full for a moment is looked at again."""
    try:
        notifier.look()
        notifier.send(time.time())
    except (sqlite3.Error, OSError, LonghaulError):
        logging.exception("a look at the run failed")
