"""`python -m benchmarks step_share`: every second of a step is counted once."""

from __future__ import annotations

import pytest

from benchmarks.step_share import Step, shares, table
from state.cycle_times import parts_of

METRICS = {
    "seconds/propose": 3.0, "seconds/solve": 4.0, "seconds/judge": 1.0, "seconds/validate_proposals": 0.5,
    "seconds/update": 2.0, "seconds/checkpoint": 9.0,
}  # fmt: skip


def test_what_no_stage_accounts_for_is_rest_and_a_checkpoint_is_of_no_step() -> None:
    assert parts_of(METRICS, 11.0) == {"generation": 7.0, "update": 2.0, "sandbox": 1.5, "rest": 0.5}


def test_shares_are_of_steps_and_what_is_between_them() -> None:
    found = shares([Step(1, True, 11.0, parts_of(METRICS, 11.0) | {"between": 1.0})] * 2)
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["sandbox"] == pytest.approx(1.5 / 12) and found["between"] == pytest.approx(1 / 12)


def test_the_first_step_of_a_worker_is_shown_and_not_counted() -> None:
    warm = Step(1, True, 99.0, {"generation": 0.0, "update": 0.0, "sandbox": 99.0, "rest": 0.0, "between": 0.0})
    later = Step(2, False, 10.0, {"generation": 8.0, "update": 1.5, "sandbox": 0.5, "rest": 0.0, "between": 0.0})
    text = table([warm, later])
    assert "99.00" in text and text.endswith("together: 5.0% of the wall time of a step")
