"""What the master tells the screen of this moment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from orchestrator.deadlines import Watch
from orchestrator.display.view import Live
from orchestrator.launchers.launcher import Handle
from orchestrator.live_facts import MEMORY_INTERVAL_S, LiveFacts
from orchestrator.schedule import Train, Validate


@dataclass
class Worker:
    """What is read of a process."""

    handle: Handle = field(default_factory=lambda: Handle("local", "owner", "token", pid=os.getpid()))
    step: int = 5
    watch: Watch = field(default_factory=lambda: Watch(spawned_at=0.0, progress_at=90.0, stage="rollout"))


def pool(worker: Worker | None = None, action: Train | Validate | None = None, standby: Worker | None = None):
    """A pool of such processes. Without an action the worker trains."""
    action = action or Train(1, 1, "train", 1, 7)
    role = "train" if isinstance(action, Train) else "validate"
    active = SimpleNamespace(worker=worker, action=action, attempt=SimpleNamespace(role=role)) if worker else None
    return SimpleNamespace(active=active, standbys=[standby] if standby is not None else [])


def told(facts: LiveFacts, now: float, workers: SimpleNamespace) -> Live:
    return facts.at(now, workers, waiting_until=None, note="")


def test_between_two_workers_only_the_master_is_there() -> None:
    live = LiveFacts().at(100.0, pool(), waiting_until=130.0, note="waiting: signal:9")
    assert (live.master_pid, live.worker_pid, live.role, live.stage, live.step) == (os.getpid(), None, "", "", None)
    assert (live.waiting_until, live.note, live.now) == (130.0, "waiting: signal:9", 100.0)
    assert live.master_rss_bytes > 1_000_000 and live.worker_rss_bytes is None


def test_a_step_begins_once_however_many_stages_it_has() -> None:
    facts, worker = LiveFacts(), Worker()
    assert told(facts, 100.0, pool(worker)).step_started == 90.0
    worker.watch = Watch(spawned_at=0.0, progress_at=101.0, stage="update")
    live = told(facts, 102.0, pool(worker))
    assert (live.step, live.stage, live.step_started) == (5, "update", 90.0)
    worker.step = 6
    assert told(facts, 103.0, pool(worker)).step_started == 101.0


def test_a_validation_is_no_step() -> None:
    live = told(LiveFacts(), 100.0, pool(Worker(), Validate(1, 1)))
    assert (live.role, live.step) == ("validate", None)


@pytest.mark.parametrize(("ready", "word"), [(False, "warming"), (True, "warm")])
def test_the_next_worker_is_warm_once_it_is_ready(ready: bool, word: str) -> None:
    assert told(LiveFacts(), 100.0, pool(standby=Worker(watch=Watch(0.0, ready)))).standby == word


def test_memory_is_measured_now_and_then_not_at_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, worker = LiveFacts(), Worker()
    measured = iter((1000, 2000))
    monkeypatch.setattr("orchestrator.live_facts.rss_bytes", lambda pid: next(measured))
    seen = [
        told(facts, 100.0 + at, pool(worker)).worker_rss_bytes for at in (0, MEMORY_INTERVAL_S / 2, MEMORY_INTERVAL_S)
    ]
    assert seen == [1000, 1000, 2000]
