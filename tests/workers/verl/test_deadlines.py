"""How long each part of a job of verl may take: a row for each part, on a clock that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.verl.profiles import debug, large
from workers.verl.deadlines import Deadlines, gib_of_weights, patience

STEP = (("rollout", 60.0), ("update", 30.0), ("sync", 10.0))
"""Stages of a usual step, and their seconds."""


def after_steps(count: int, *, factor: float = 1.0) -> tuple[Deadlines, float]:
    """A job that has done so many usual steps, and the time of its next one."""
    found, now = Deadlines(large(timeouts__step_min_s=100), 0.0, factor), 0.0
    for step in range(1, count + 1):
        for stage, seconds in STEP:
            assert found.overdue(step, stage, now) == ""
            now += seconds
    assert found.overdue(count + 1, "rollout", now) == ""
    return found, now


@pytest.mark.parametrize(
    ("stage", "gib", "limit"),
    [
        pytest.param("placement", 0.0, 600, id="a place for each process"),
        pytest.param("engines", 0.0, 900, id="engines of a tiny model"),
        pytest.param("engines", 60.0, 900 + 20 * 60 / 4, id="engines of 32B on 4 GPUs each"),
        pytest.param("engines", 2000.0, 3600, id="engines of any model"),
    ],
)
def test_the_start_of_a_job_has_a_deadline_for_each_part(stage: str, gib: float, limit: float) -> None:
    found = Deadlines(large(), gib, 1.0)
    assert found.overdue(-1, "", 0.0) == "" == found.overdue(-1, "", 1e6), "the worker has one for the whole start"
    assert found.overdue(-1, stage, 1e6) == "" == found.overdue(-1, stage, 1e6 + limit)
    assert found.overdue(-1, stage, 1e6 + limit + 1).startswith(f"{stage} has taken {limit + 1:.0f} s")


def test_a_step_may_take_five_times_the_median() -> None:
    found, now = after_steps(3)
    assert found.overdue(4, "rollout", now + 500) == ""
    assert found.overdue(4, "rollout", now + 501) == "step 4 has taken 501 s, and 500 s is its deadline"


def test_the_stages_of_a_step_share_its_deadline_but_for_files_and_validation() -> None:
    found, now = after_steps(3)
    assert found.overdue(4, "rollout", now + 400) == ""
    assert found.overdue(4, "checkpoint", now + 400) == "" == found.overdue(4, "checkpoint", now + 9000)
    assert found.overdue(4, "update", now + 9000) == "" == found.overdue(4, "update", now + 9100)
    assert "step 4" in found.overdue(4, "update", now + 9101)


def test_a_sync_may_take_three_times_the_median_and_a_minute_at_least() -> None:
    found, now = after_steps(3)
    assert found.overdue(4, "sync", now) == "" == found.overdue(4, "sync", now + 60)
    assert found.overdue(4, "sync", now + 61) == "the sync of weights has taken 61 s, and 60 s is its deadline"


def test_too_few_steps_say_nothing_about_the_next() -> None:
    found, now = after_steps(2)
    assert found.overdue(3, "rollout", now + 1e6) == ""


def test_deadlines_stretch_with_one_factor_and_on_a_cpu() -> None:
    found, now = after_steps(3, factor=2.0)
    assert found.overdue(4, "rollout", now + 1000) == "" != found.overdue(4, "rollout", now + 1001)
    assert patience(large(), {}) == 1.0
    assert patience(large(), {"LONGHAUL_VERL_PATIENCE": "2.5"}) == 2.5
    assert patience(debug(), {"LONGHAUL_VERL_PATIENCE": "2"}) == 20.0


def test_the_weights_of_a_model_are_those_of_its_files(tmp_path: Path) -> None:
    for name, size in {"a.safetensors": 2**20, "b.safetensors": 2**20, "tokenizer.json": 2**20}.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert gib_of_weights(tmp_path) == 2 / 1024
