"""Stages of a step: what is reported of them, and how many seconds each has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.workers import harness as h
from workers.control import Control
from workers.runtime import Attempt


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """A clock that only `sleep` moves."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    spec = h.make_spec(tmp_path, h.fake_profile(), head=None, end_step=1)
    return Attempt(spec, Control(None, spec.token))


def test_seconds_of_a_stage_inside_another_count_once(attempt: Attempt) -> None:
    with attempt.stage("update"):
        time.sleep(1)
        with attempt.stage("rollout"):
            time.sleep(2)
        time.sleep(4)
    assert attempt.take_seconds() == {"rollout": 2, "update": 5}


def test_after_a_stage_inside_it_a_stage_is_reported_again(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(attempt.control, "at", lambda step, stage: told.append(stage))
    with attempt.stage("update"), attempt.stage("rollout"):
        pass
    assert told == ["update", "rollout", "update"]
