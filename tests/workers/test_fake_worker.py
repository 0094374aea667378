"""The fake worker proves the protocol: the same runtime and loop as the real one, without the arithmetic."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from profiles.errors import ExitCode
from tests.workers import harness as h
from workers.contract import Message, Outcome


def test_a_cycle_does_exactly_its_steps_and_ends_on_a_checkpoint_of_the_last(tmp_path: Path) -> None:
    h.trained(tmp_path, h.fake_profile(), steps=12)
    seed, cycle = tmp_path / "cycles/0000/attempt-1", tmp_path / "cycles/0001/attempt-1"
    assert [e.step for e in h.events_at(cycle, "step")] == list(range(1, 13))
    assert [e.step for e in h.events_at(cycle, "checkpoint")] == [5, 10, 12]
    assert [e.step for e in h.events_at(seed, "checkpoint")] == [0]
    assert [e.seq for e in h.events_at(cycle)] == list(range(1, len(h.events_at(cycle)) + 1))
