"""What trainers report in a step, in real worker processes, is in the table of metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from profiles.metrics import metric_of
from profiles.schema import Profile
from tests.workers import harness as h
from tests.workers.grpo.small import sums, write_problems
from tests.workers.grpo.test_grpo_worker import profile_of


def of_grpo(root: Path) -> Profile:
    return profile_of(write_problems(root / "sums.jsonl", sums(12)))


@pytest.mark.parametrize(
    ("warm", "profile"),
    [
        pytest.param("fake", lambda root: h.fake_profile(), id="fake"),
        pytest.param("azr", lambda root: h.tiny_profile(), id="self-play", marks=pytest.mark.slow),
        pytest.param("grpo", of_grpo, id="GRPO", marks=pytest.mark.slow),
    ],
)
def test_every_metric_of_a_step_is_declared(warm: str, profile: Callable[[Path], Profile], tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    h.trained(root, profile(tmp_path), 2, warm=warm)
    steps = [event for path in root.glob("cycles/0001/attempt-*") for event in h.events_at(path, "step")]
    assert len(steps) == 2
    for name in {name for step in steps for name in step.data}:
        metric_of(name)
