"""`python -m benchmarks memory`: the time of a step is the sum of all its parts, including the scoring pass."""

from __future__ import annotations

import pytest

from benchmarks import memory
from benchmarks.memory import Phase, Report, rollouts_of, step_seconds
from profiles.load import load_profile

SMALL = [
    "sampling.max_prompt_tokens=48", "sampling.max_completion_tokens=8", "optimizer.row_tokens=64",
]  # fmt: skip


def report_of(seconds: dict[str, float]) -> Report:
    return Report("any", "cpu", phases=[Phase(name, each) for name, each in seconds.items()])


def test_a_step_of_self_play_is_drawn_whole_and_scored_and_trained_on_update_by_update() -> None:
    profile = load_profile("azr-3b-qlora", []).profile
    report = report_of(
        {"rollout 2": 99.0, "proposals": 20.0, "answers": 30.0, "scored rows": 2.0, "update": 8.0, "optimiser": 0.5}
    )
    assert step_seconds(profile, report, 16, 4) == pytest.approx(20.0 + 30.0 + 3 * (2.0 + 8.0 + 0.5))


def test_a_step_of_grpo_is_computed_from_one_batch_of_rollouts_and_one_micro_batch() -> None:
    profile = load_profile("grpo-qwen3-4b-12gb", []).profile
    report = report_of({"rollout 2": 4.0, "score 2": 0.25, "micro-batch 2": 0.5, "optimiser": 0.125})
    assert rollouts_of(profile) == 16 and profile.optimizer.updates_per_step == 1
    assert step_seconds(profile, report, 8, 4) == pytest.approx(16 / 8 * 4.0 + 16 / 4 * (0.25 + 0.5) + 0.125)


@pytest.mark.parametrize(
    ("overrides", "is_scored"), [([], True), pytest.param(["optimizer.tis_cap=0"], False, marks=pytest.mark.exhaustive)]
)
def test_the_scoring_pass_is_measured_where_the_profile_makes_one(overrides: list[str], is_scored: bool) -> None:
    found = memory.in_a_process("azr-3b-qlora-debug", [*SMALL, *overrides], None, "")
    assert found["error"] == ""
    names = [phase["name"] for phase in found["phases"]]
    assert ("score 2" in names) == ("scored rows" in names) == is_scored
    assert {"micro-batch 2", "proposals", "answers", "update"} <= set(names) and found["step_s"] > 0
