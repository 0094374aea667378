"""A mismatch beyond rounding causes a warning; beyond a second bound it ends the run."""

from __future__ import annotations

import pytest

from orchestrator.schedule import FINAL_CODES
from profiles.errors import ExitCode, LonghaulError
from profiles.mismatch import FLOAT32
from workers.cycle.mismatch import warning_of


@pytest.mark.parametrize(("mean", "is_warned"), [(1e-6, False), (5e-4, True), (float("nan"), False)])
def test_a_warning_names_the_likely_causes(mean: float, is_warned: bool) -> None:
    said = warning_of(7, {"mismatch_mean": mean, "mismatch_tokens": 500.0}, FLOAT32)
    assert bool(said) is is_warned
    assert not said or ("likely causes" in said and "step 7" in said)


def test_beyond_the_second_bound_the_run_ends_and_no_attempt_follows() -> None:
    metrics = {"mismatch_mean": 0.36, "mismatch_tokens": 500.0}
    with pytest.raises(LonghaulError, match="likely causes") as caught:
        warning_of(7, metrics, FLOAT32)
    assert caught.value.exit_code == ExitCode.MISMATCH == 80
    assert ExitCode.MISMATCH in FINAL_CODES
    assert warning_of(7, metrics, FLOAT32._replace(end=0.0))  # never ends, still warns


def test_a_step_without_an_update_says_nothing() -> None:
    assert warning_of(1, {}, FLOAT32) == ""
