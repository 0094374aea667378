"""What is wrong with the guide's YAML, finding by finding, and that what is written instead has none."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cluster_plan import refusals
from orchestrator.job_time import JobTime
from orchestrator.open_instruct.render import corrected_yaml
from profiles.open_instruct.document import settings_of
from profiles.open_instruct.options import UPSTREAM
from tests.orchestrator.open_instruct.bundles import GUIDE, PRODUCTION, bundles, reading

SIX = ["learners", "whole gather", "second copy", "steps", "save", "engines"]


def names(settings: dict[str, Any], **where: Any) -> list[str]:
    return [fault.name for fault in reading(settings, **where).faults]


def test_the_guides_memory_test_has_six_findings_in_numbers() -> None:
    found = reading(GUIDE)
    assert [fault.name for fault in found.faults] == SIX
    learners, gather, copy, steps, save, engines = (fault.text for fault in found.faults)
    assert "[1]: the list is added up, so 1 GPU trains with 540.4 GiB of state" in learners
    assert "the fork repeats it for each host: 8 GPUs, 87.4 GiB in train" in learners
    assert "60.0 GiB, on each of 16 GPUs at the first sync: 100.2 of 95.3 GiB" in gather
    assert "deepspeed_zpg 8" in copy and "7.5 GiB on each, over hosts of 4" in copy
    assert "total_episodes 10 make 0 steps, since a step takes 8 prompts x 4 samples = 32" in steps
    assert save == "save_freq 200: no save in 0 steps"
    assert engines == "24 engines of 2 GPUs need 48; 8 hosts of 4 GPUs less 16 that train leave 16, room for 8"


def test_the_guides_production_run_of_39_steps_neither_saves_nor_evaluates() -> None:
    found = reading(GUIDE | PRODUCTION, hosts=16)
    texts = {fault.name: fault.text for fault in found.faults}
    assert found.as_is.steps == 39
    assert texts["save"] == "save_freq 200: no save in 39 steps"
    assert texts["evaluation"] == "local_eval_every 50: no evaluation in 39 steps"
    assert found.corrected["save_freq"] == 20 and found.corrected["local_eval_every"] == 19
    assert found.corrected["total_episodes"] == 10_000 and "engines" not in texts


@pytest.mark.parametrize("learners", [[4, 4], [1] * 8, [8]])
def test_eight_learners_are_refused_however_they_are_written(learners: list[int]) -> None:
    found = reading(GUIDE | PRODUCTION | {"num_learners_per_node": learners})
    assert "memory" in {one.about for one in refusals(found.as_is)}
    assert found.corrected["num_learners_per_node"] == [4, 4, 4, 4]


def test_what_is_right_stays() -> None:
    right = settings_of(corrected_yaml(reading(GUIDE), "g"), "g")
    assert names(right) == [] and reading(right).corrected == right


@pytest.mark.parametrize(
    ("change", "name", "becomes"),
    [
        ({"deepspeed_stage": 2}, "stage", {"deepspeed_stage": 3}),
        ({"gradient_checkpointing": False}, "recomputation", {"gradient_checkpointing": True}),
        ({"beta": 0.05}, "reference", {"load_ref_policy": True}),
        ({"load_ref_policy": True}, "reference", {"load_ref_policy": False, "beta": 0.0}),
        ({"pack_length": 5000}, "pack", {"pack_length": 5120}),
        ({"vllm_sync_backend": "gloo"}, "sync backend", {"vllm_sync_backend": "nccl"}),
        ({"push_to_hub": True}, "hub", {"push_to_hub": False}),
        ({"length_penalty_coeff": -0.1}, "fork", {}),
        ({"local_eval_every": 9}, "evaluation", {"local_eval_every": 2}),
        ({"vllm_tensor_parallel_size": 3}, "engines", {"vllm_num_engines": 4, "vllm_tensor_parallel_size": 4}),
        ({"vllm_num_engines": 5}, "engines", {"vllm_num_engines": 8, "vllm_tensor_parallel_size": 2}),
        ({"checkpoint_state_freq": None}, "save", {"checkpoint_state_freq": 5}),
        ({"checkpoint_state_freq": 500}, "save", {"save_freq": 5, "checkpoint_state_freq": 5}),
    ],
)
def test_one_setting_that_is_wrong_is_one_finding(change: dict[str, Any], name: str, becomes: dict[str, Any]) -> None:
    changed = dict(reading(GUIDE).corrected) | change
    (fault,) = reading({option: one for option, one in changed.items() if one is not None}).faults  # None: left out
    assert fault.name == name and dict(fault.becomes) == becomes and fault.text


def test_a_job_with_a_limit_has_time_for_four_checkpoints_at_least() -> None:
    time = JobTime(3 * 3600, start_s=1200, save_s=120, step_s=190)
    found = reading(GUIDE | PRODUCTION, hosts=16, time=time)
    assert time.steps_per_job == 48 and found.corrected["checkpoint_state_freq"] == 12
    assert {fault.name: fault.text for fault in found.faults}["save"].endswith("less than 4 saves in a job of 48 steps")


def test_two_hosts_are_too_few_for_any_layout() -> None:
    found = reading(GUIDE | PRODUCTION, hosts=2)
    assert found.fit is None and found.job is None


@pytest.mark.parametrize(("name", "found"), list(bundles()), ids=lambda one: one if isinstance(one, str) else "")
def test_every_corrected_job_fits_and_is_in_upstreams_words(name: str, found: Any) -> None:
    assert found.job is not None and refusals(found.job) == []
    assert set(found.corrected) <= set(UPSTREAM)
    assert settings_of(corrected_yaml(found, "g"), name) == found.corrected
    forced = {"gather_whole_model": False, "deepspeed_zpg": 1, "gradient_checkpointing": True, "push_to_hub": False}
    assert forced.items() <= found.corrected.items()
    assert found.corrected["rho_clamp_upper_bound"] == 2.0  # the fork's name for it is gone
