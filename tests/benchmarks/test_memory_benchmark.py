"""`python -m benchmarks memory`: the time of a step is the sum of all its parts, including the scoring pass."""

from __future__ import annotations

import pytest

from benchmarks import memory
from benchmarks.memory import Phase, Report, rollouts_of, step_seconds
from profiles.load import load_profile

SMALL = [
    "sampling.max_prompt_tokens=48", "sampling.max_completion_tokens=8", "optimizer.row_tokens=64",
]  # fmt: skip


def test_a_step_scores_every_rollout_before_it_trains_on_it() -> None:
    profile = load_profile("azr-3b-qlora", []).profile
    seconds = {"rollout 2": 6.0, "score 2": 0.3, "micro-batch 2": 1.0, "optimiser": 0.5}
    report = Report("azr-3b-qlora", "cpu", phases=[Phase(name, each) for name, each in seconds.items()])
    count = rollouts_of(profile)
    assert count == 3 * 16 * 5 == 240
    assert step_seconds(profile, report, 16, 4) == pytest.approx(240 / 16 * 6.0 + 240 / 4 * (0.3 + 1.0) + 3 * 0.5)


@pytest.mark.parametrize(
    ("overrides", "is_scored"), [([], True), pytest.param(["optimizer.tis_cap=0"], False, marks=pytest.mark.exhaustive)]
)
def test_the_scoring_pass_is_measured_where_the_profile_makes_one(overrides: list[str], is_scored: bool) -> None:
    found = memory.in_a_process("azr-3b-qlora-debug", [*SMALL, *overrides], None, "")
    assert found["error"] == ""
    names = [phase["name"] for phase in found["phases"]]
    assert ("score 2" in names) == is_scored and "micro-batch 2" in names and found["step_s"] > 0
