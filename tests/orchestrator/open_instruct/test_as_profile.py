"""The profiles that an import writes: what they take over, and where there can be none for verl."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.open_instruct.as_profile import open_instruct_toml, verl_toml
from orchestrator.open_instruct.render import corrected_yaml
from profiles.errors import LonghaulError
from profiles.load import load_profile
from profiles.open_instruct.demands import problems
from profiles.open_instruct.document import read
from profiles.open_instruct.options import UPSTREAM_COMMIT
from tests.orchestrator.open_instruct.bundles import GUIDE, PRODUCTION, reading


def test_model_lengths_batch_and_steps_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "guide.toml"
    path.write_text(verl_toml(reading(GUIDE | PRODUCTION | {"learning_rate": 2e-6}, hosts=16), "guide.yaml"))
    profile = load_profile(str(path)).profile
    assert (profile.run.worker, profile.run.hosts, profile.run.gpus) == ("verl", 16, 4)
    assert (profile.grpo.groups_per_step, profile.grpo.group_size) == (32, 8)
    assert (profile.sampling.max_prompt_tokens, profile.sampling.max_completion_tokens) == (1024, 8192)
    assert profile.optimizer.learning_rate == 2e-6 and profile.verl.tokens_per_gpu == 10_240
    assert profile.run.max_cycles * profile.run.steps_per_cycle == 40  # 39 in whole cycles of 20
    assert profile.model.path == GUIDE["model_name_or_path"]


def test_code_rewards_start_from_the_profile_for_code() -> None:
    text = verl_toml(reading(GUIDE | {"code_max_execution_time": 5.0}), "guide.yaml")
    assert 'extends = "grpo-32b-code"' in text


def test_a_batch_that_the_gpus_do_not_divide_gives_no_profile_and_the_reason() -> None:
    with pytest.raises(LonghaulError, match="32 rollouts for each update, which 64 training ranks do not"):
        verl_toml(reading(GUIDE, hosts=16), "guide.yaml")


def test_the_profile_for_open_instruct_starts_the_corrected_yaml_as_it_demands(tmp_path: Path) -> None:
    found = reading(GUIDE | PRODUCTION, hosts=16)
    guide, path = tmp_path / 'a "long" name of a folder that is longer than sixty characters.yaml', tmp_path / "g.toml"
    guide.write_text(corrected_yaml(found, "guide.yaml"))
    path.write_text(open_instruct_toml(found, "guide.yaml", guide))
    profile = load_profile(str(path)).profile
    assert (profile.run.worker, profile.run.steps_per_cycle, profile.run.checkpoint_every) == ("open_instruct", 39, 20)
    assert profile.open_instruct.guide == str(guide) and profile.open_instruct.commit == UPSTREAM_COMMIT
    assert problems(read(guide), profile.run) == []
