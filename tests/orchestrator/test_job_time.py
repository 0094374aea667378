"""Steps of a job and jobs of a run, from the scheduler's limit; limits that no run can live with."""

from __future__ import annotations

import pytest

from orchestrator.job_time import JobTime

HOUR = 3600.0


def test_a_thousand_steps_of_190_s_are_three_jobs_of_a_day() -> None:
    time = JobTime(24 * HOUR, start_s=1200, save_s=120, step_s=190)
    assert time.margin_s == 120 + 190 + 60
    assert time.steps_per_job == (86_400 - 1200 - 370) // 190 == 446
    assert time.jobs(1000) == 3 and time.jobs(446) == 1 and time.jobs(447) == 2
    assert time.problem == ""


def test_the_margin_is_two_minutes_at_least() -> None:
    assert JobTime(HOUR, start_s=10, save_s=1, step_s=1).margin_s == 120


def test_without_the_time_of_a_step_nothing_is_said_of_steps() -> None:
    time = JobTime(HOUR, start_s=10, save_s=1)
    assert time.steps_per_job is None and time.jobs(10) is None and time.problem == ""


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (JobTime(600, start_s=500, save_s=101, step_s=1), "shorter than start-up and one save together, 10 min"),
        (JobTime(1000, start_s=1, save_s=200, step_s=1), "take 4 min, 26% of the limit of 17 min; at most 25%"),
        (JobTime(1000, start_s=700, save_s=60, step_s=120), "has no time for a step of 120 s after start-up"),
    ],
)
def test_a_limit_that_is_too_short_is_refused_and_the_least_that_would_do_is_not(time: JobTime, said: str) -> None:
    assert said in time.problem
    enough = JobTime(time.least_limit_s, time.start_s, time.save_s, time.step_s)
    assert enough.problem == "" and (enough.steps_per_job or 0) >= 1
