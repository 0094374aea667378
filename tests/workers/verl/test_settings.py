"""From a profile to verl's settings: what each knob becomes, and what the pinned release accepts."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.rules import check as check_rules
from profiles.schema import Profile
from tests.workers.verl.profiles import debug, large
from workers.verl import check
from workers.verl.check import EXAMPLE
from workers.verl.settings import command_line, padded_rows, settings

needs_verl = pytest.mark.skipif(
    importlib.util.find_spec("verl") is None or importlib.util.find_spec("hydra") is None,
    reason="verl is not installed (scripts/install-verl.sh)",
)


def rendered(profile: Profile, **work: Any) -> Mapping[str, Any]:
    return settings(profile, replace(EXAMPLE, **work))


VARIANTS = {
    "debug": debug(),
    "full": large(),
    "lora": large(adapter__rank=64),
    "megatron": large(verl__strategy="megatron", verl__train_tensor_parallel=4, verl__pipeline_parallel=2),
    "megatron with lora": large(verl__strategy="megatron", adapter__rank=64),
    "one step off": large(verl__rollout_gpus=2, verl__tensor_parallel=2, run__hosts=8),
    "code": large(verl__code_server="http://10.0.0.1:8123/secret"),
    "kl in the loss": large(grpo__kl_coef=0.01),
    "kl in the reward": large(grpo__kl_coef=0.01, verl__kl_in="reward"),
    "dynamic sampling": large(grpo__dynamic_sampling=True, grpo__uniform="skip"),
    "rloo": large(grpo__advantage="rloo"),
    "offload": large(optimizer__offload=True, optimizer__updates_per_step=2),
}


@needs_verl
@pytest.mark.parametrize("name", VARIANTS)
def test_the_pinned_release_knows_every_setting_of(name: str) -> None:
    profile = VARIANTS[name]
    assert [one.text for one in check_rules(profile)] == []
    check.compose(settings(profile, EXAMPLE))
    check.compose(settings(profile, replace(EXAMPLE, resume=Path("/a/global_step_5"), is_validation=True)))


@needs_verl
def test_a_name_that_verl_does_not_know_is_refused_before_anything_is_submitted() -> None:
    with pytest.raises(
        LonghaulError, match=r"verl 0\.9\.1 refuses a setting: .*actor_rollout_ref.actor.no_such"
    ) as told:
        check.compose({"actor_rollout_ref.actor.no_such": 1})
    assert told.value.exit_code == ExitCode.INPUT and told.value.kept == "everything; nothing was submitted"


@needs_verl
def test_paths_and_templates_reach_verl_as_they_are() -> None:
    from hydra import compose, initialize_config_dir

    odd = "/tmp/a b,c=d'{e}$[f]\\g.parquet"
    folder = Path(str(importlib.util.find_spec("verl").origin)).parent / "trainer/config"  # type: ignore[union-attr]
    words = [word for word in command_line(rendered(debug(), train=Path(odd))) if not word.startswith("hydra.")]
    with initialize_config_dir(str(folder), version_base=None):
        found = compose("ppo_trainer", overrides=words)
    assert found.data.train_files == odd
    assert "message['content']" in found.actor_rollout_ref.model.custom_chat_template


def test_without_flash_attention_rows_are_padded_and_attention_is_pytorchs() -> None:
    attention = "+actor_rollout_ref.model.override_config.attn_implementation"
    padding = "actor_rollout_ref.model.use_remove_padding"
    packed, padded = rendered(large()), rendered(large(), has_flash_attention=False)
    assert attention not in packed and packed[padding] is True
    assert padded[attention] == "sdpa" and padded[padding] is False


def test_padded_rows_of_a_pass_hold_no_more_positions_than_the_plan_counts() -> None:
    profile = large()
    found = rendered(profile, has_flash_attention=False)
    rows = found["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"]
    assert found["actor_rollout_ref.actor.use_dynamic_bsz"] is False
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" not in found
    assert rows * (profile.sampling.max_prompt_tokens + profile.sampling.max_completion_tokens) <= 10240
    assert found["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"] == rows
    assert found["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] == rows


@pytest.mark.parametrize(
    ("tokens_per_gpu", "rows"),
    [(88, 1), (88 * 3, 2), (88 * 8, 8), (88 * 100, 16), (10, 1)],
)
def test_padded_rows_divide_what_a_gpu_trains_on(tokens_per_gpu: int, rows: int) -> None:
    assert padded_rows(debug(verl__tokens_per_gpu=tokens_per_gpu, run__gpus=1)) == rows


def test_a_full_fine_tuning_of_32b_on_8_nodes() -> None:
    found = rendered(large(grpo__norm="sequence", optimizer__updates_per_step=4))
    expected = {
        "trainer.nnodes": 8,
        "trainer.n_gpus_per_node": 4,
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 4,
        "actor_rollout_ref.rollout.n": 8,
        "data.train_batch_size": 32,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 10240,
        "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
        "actor_rollout_ref.actor.use_kl_loss": False,
        "algorithm.use_kl_in_reward": False,
        "algorithm.rollout_correction.rollout_is_threshold": 2.0,
        "trainer.save_freq": -1,
    }
    assert {name: found[name] for name in expected} == expected


def test_a_checkpoint_to_resume_from_is_named_and_never_guessed() -> None:
    assert rendered(debug())["trainer.resume_mode"] == "disable"
    found = rendered(debug(), resume=Path("/run/verl/global_step_7"))
    assert found["trainer.resume_mode"] == "resume_path"
    assert found["trainer.resume_from_path"] == "/run/verl/global_step_7"


def test_one_step_off_divides_each_host_between_training_and_rollouts() -> None:
    found = rendered(VARIANTS["one step off"])
    assert found["trainer.v1.trainer_mode"] == "separate_async"
    assert (found["trainer.n_gpus_per_node"], found["actor_rollout_ref.rollout.n_gpus_per_node"]) == (2, 2)
    assert found["actor_rollout_ref.rollout.nnodes"] == 8
    assert found["trainer.v1.separate_async.parameter_sync_step"] == 1


def test_a_cluster_that_is_there_is_joined_and_none_is_started() -> None:
    found = rendered(debug(), address="10.0.0.1:6379", spool="")
    assert found["+ray_kwargs.ray_init.address"] == "10.0.0.1:6379"
    assert not any("num_gpus" in name or "_temp_dir" in name for name in found)


@pytest.mark.parametrize(
    ("values", "knob", "said"),
    [
        ({"verl__tensor_parallel": 3}, "verl.tensor_parallel", "does not divide the 4 GPUs of a host"),
        ({"run__hosts": 7}, "grpo.groups_per_step", "256 rollouts for each update, which 28 training ranks do not"),
        ({"grpo__groups_per_step": 33, "optimizer__updates_per_step": 2}, "grpo.groups_per_step", "not a multiple"),
        ({"verl__tokens_per_gpu": 8192}, "verl.tokens_per_gpu", "longest rollout (10240 tokens)"),
        ({"verl__rollout_gpus": 4}, "verl.rollout_gpus", "leaves none of the 4 GPUs"),
        ({"verl__train_tensor_parallel": 2}, "verl.train_tensor_parallel", 'which only strategy = "megatron" does'),
        ({"grpo__truncated": "mask"}, "grpo.truncated", 'grpo.truncated = "keep"'),
        ({"optimizer__decay_steps": 100}, "optimizer.decay_steps", "optimizer.decay_steps = 0"),
        ({"validation__sampled": True}, "validation.sampled", "validation.sampled = false"),
        ({"grpo__uniform": "skip"}, "grpo.uniform", "verl trains on uniform groups"),
        ({"sampling__engine": "native"}, "sampling.engine", 'must be "vllm"'),
        (
            {"run__device": "cpu", "sampling__engine": "hf", "verl__rollout_gpus": 2, "verl__tensor_parallel": 2},
            "verl.rollout_gpus",
            "NCCL",
        ),
    ],
)
def test_what_verl_or_the_gpus_cannot_do_is_refused_with_the_knob(values: Any, knob: str, said: str) -> None:
    found = [one for one in check_rules(large(**values)) if knob in one.knobs]
    assert found and said in found[0].text


@pytest.mark.parametrize(("heads", "parts"), [(40, 1), (40, 2), (40, 4), (40, 8), (28, 4)])
def test_tensor_parallelism_that_divides_the_heads_is_taken(heads: int, parts: int) -> None:
    check.check_heads(large(verl__tensor_parallel=parts), {"num_attention_heads": heads})


def test_tensor_parallelism_that_does_not_is_refused_with_the_numbers_that_do() -> None:
    with pytest.raises(LonghaulError, match="8 does not divide the 28 attention heads") as told:
        check.check_heads(large(verl__tensor_parallel=8), {"num_attention_heads": 28})
    assert "N one of 1, 2, 4, 7" in told.value.next_command


@pytest.mark.parametrize("package", ["verl", "ray", "TransferQueue"])
def test_another_release_than_the_tested_one_is_refused(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "TESTED", {package: "0.0.1"})
    with pytest.raises(LonghaulError, match=rf"{package}.* 0\.0\.1") as told:
        check.check_packages(debug())
    assert told.value.next_command == "bash scripts/install-verl.sh"


def test_a_job_in_a_cluster_asks_for_nothing_that_only_a_new_cluster_can_have() -> None:
    found = rendered(debug(run__hosts=2, run__gpus=1), address="10.0.0.1:6379")
    assert found["+ray_kwargs.ray_init.address"] == "10.0.0.1:6379"
    assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == (2, 1)
    assert not {name for name in found if name.endswith(("num_gpus", "num_cpus", "object_store_memory", "_temp_dir"))}
    assert found["transfer_queue.backend.SimpleStorage.num_data_storage_units"] == 1, "what a CPU needs stays"
