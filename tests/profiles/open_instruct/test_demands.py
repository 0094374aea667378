"""What a YAML of open-instruct must say before a job of it is started."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.open_instruct.demands import is_packed, problems, steps_of
from profiles.schema import Run
from tests.workers.open_instruct.setting import GUIDE

RUN: dict[str, Any] = {
    "worker": "open_instruct",
    "gpus": 4,
    "max_cycles": 1,
    "steps_per_cycle": 8,
    "checkpoint_every": 3,
}


def found(changes: dict[str, Any], **run: Any) -> list[str]:
    settings = {name: one for name, one in (GUIDE | changes).items() if one is not None}
    return problems(settings, Run(**({"checkpoint_every": 3} | RUN | run)))


def test_a_yaml_that_says_everything_has_no_problem() -> None:
    assert found({}) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"checkpoint_state_freq": None}, "so a crash or a stop would lose every step"),
        ({"checkpoint_state_freq": -1}, "it has no checkpoint_state_freq"),
        ({"gather_whole_model": True}, "gather_whole_model is true; it must be false"),
        ({"gather_whole_model": None}, "gather_whole_model is true; it must be false"),  # upstream's default
        ({"deepspeed_zpg": 4}, "deepspeed_zpg is 4; it must be 1"),
        ({"push_to_hub": None}, "push_to_hub is true; it must be false"),
        ({"total_episodes": 7}, "total_episodes 7 make 0 steps of 8 rollouts"),
        ({"num_samples_per_prompt_rollout": 1, "num_unique_prompts_rollout": 5, "total_episodes": 40},
         "5 rollouts a step do not divide among 2 GPUs that train"),
        ({"vllm_num_engines": 3}, "2 GPUs that train and 3 that draw are more than 4"),
        ({"warm_up_steps": 3}, "upstream does not know warm_up_steps"),
        ({"wandb_project_name": "x"}, "wandb_project_name is wandb_project there"),
        ({"gs_bucket_path": "gs://x"}, "gs_bucket_path is set, which a run cannot work with"),
        ({"ref_policy_update_freq": 5}, "ref_policy_update_freq is set"),
        ({"dataset_mixer_eval_list": []}, "dataset_mixer_eval_list is [], which its command line cannot say"),
        ({"stop_strings": ["--x"]}, "stop_strings is ['--x'], which its command line cannot say"),
    ],
)  # fmt: skip
def test_what_stands_against_a_start_is_told(changes: dict[str, Any], said: str) -> None:
    (problem,) = found(changes)
    assert said in problem


@pytest.mark.parametrize(
    ("learners", "gpus", "packed"),
    [
        ((4, 4), 4, True),
        ((4, 4, 2), 4, True),
        ((2,), 4, True),
        ((1, 1), 4, False),
        ((2, 4), 4, False),
        ((8,), 4, False),
    ],
)
def test_hosts_with_learners_are_full_of_them_but_for_the_last(
    learners: tuple[int, ...], gpus: int, packed: bool
) -> None:
    assert is_packed(learners, gpus) == packed


def test_learners_that_are_not_packed_are_told_how_to_be() -> None:
    problem = found({"num_learners_per_node": [1, 1, 1, 1]}, hosts=2)[0]
    assert problem == "num_learners_per_node [1, 1, 1, 1] is not packed on hosts of 4 GPUs (run.gpus): [4]"


def test_the_profile_says_the_same_steps_and_the_same_frequency() -> None:
    (steps,) = found({}, steps_per_cycle=4, max_cycles=2)
    assert "run.steps_per_cycle = 8 and run.max_cycles = 1, not 4 and 2" in steps
    (every,) = found({}, checkpoint_every=5)
    assert every == "checkpoint_state_freq is 3, and run.checkpoint_every is 5: they must agree"


def test_everything_is_told_at_once() -> None:
    assert len(found({"gather_whole_model": True, "deepspeed_zpg": 8, "total_episodes": 0})) == 3


def test_episodes_that_make_no_whole_step_do_not_count() -> None:
    assert steps_of(GUIDE | {"total_episodes": 71}) == 8
