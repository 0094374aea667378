"""From a profile to verl's own settings, as the words of its command line. (pure)

What stands here is all that is set; everything else is verl's default of the release that `check.py` pins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from profiles.verl_rules import training_gpus

AGGREGATION = {"token": "token-mean", "sequence": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
"""`grpo.norm` -> what verl calls it."""
PASS_THROUGH = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""Chat template of verl: our prompts are whole already, in the model's own template where the style has one."""
DEFAULT_TIS_CAP = 2.0
"""Of `optimizer.tis_cap` = -1."""
CPU_PLACES = 32
"""Ray's CPUs without GPUs: places, not cores; each small actor takes one."""
CPU_STORE_BYTES = 200_000_000
"""Ray's object store without GPUs: the tensors of a tiny model."""
CONTROL, METRICS = "control", "metrics.jsonl"
"""In the attempt's folder of verl."""
ENDLESS = 1_000_000
"""Epochs; the number of steps ends the work."""

Settings = dict[str, Any]
"""Name in verl's config -> value. A name that its schema does not have begins with `+`, as hydra wants it."""


@dataclass(frozen=True)
class Work:
    """What one job of verl is to do, and where. folder: of the attempt's own files."""

    model: Path
    tokenizer: Path
    """Folder with the model's tokenizer alone: beside a config.json, a library would choose rules of its own."""
    train: Path
    validation: Path
    folder: Path
    last_step: int
    resume: Path | None = None
    """A folder `global_step_N` with verl's files; None: the model as it is."""
    is_validation: bool = False
    """Answer the held-out problems once, and train nothing."""
    spool: str = ""
    """Ray's folder on this host, a short path; empty: a cluster is there already."""
    address: str = ""
    """Of the cluster to join; empty: the driver starts one."""
    has_flash_attention: bool = True
    """Whether the package flash_attn is installed. On a CPU it is not asked for."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for all processes of the job."""

    @property
    def control(self) -> Path:
        """Where requests and their answers lie (`signals.py`)."""
        return self.folder / CONTROL

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS

    @property
    def answers(self) -> Path:
        """Folder of what was answered to held-out problems."""
        return self.folder / "answers"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def log(self) -> Path:
        return self.folder / "verl.log"


def settings(profile: Profile, work: Work) -> Settings:
    """All settings of one job."""
    found: Settings = {}
    for part in (_data, _model, _passes, _actor, _rollout, _algorithm, _trainer, _ray):
        found |= part(profile, work)
    return found


def command_line(found: Settings) -> list[str]:
    """The settings as words for hydra; strings are quoted, so that no character of a path has a meaning there."""
    return [f"{name}={_written(value)}" for name, value in found.items()]


def _written(value: Any) -> str:
    if isinstance(value, str):
        # Hydra takes a backslash for itself, unless a quote follows.
        return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + "\\'" * bool(found[2]), value) + "'"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return "null" if value is None else json.dumps(value)


def _data(p: Profile, work: Work) -> Settings:
    return {
        "data.train_files": str(work.train),
        "data.val_files": str(work.validation),
        "data.train_batch_size": p.grpo.groups_per_step,
        "data.max_prompt_length": p.sampling.max_prompt_tokens,
        "data.max_response_length": p.sampling.max_completion_tokens,
        "data.seed": p.run.seed,
        "data.dataloader_num_workers": 0,
        "reward.custom_reward_function.path": str(Path(__file__).with_name("reward.py")),
        "+reward.custom_reward_function.reward_kwargs.lenient": p.grpo.lenient_answers,
        "+reward.custom_reward_function.reward_kwargs.verifier": p.grpo.verifier,
        "+reward.custom_reward_function.reward_kwargs.program_s": p.sandbox.cpu_s,
        "reward.num_workers": 1 if p.run.device == "cpu" else 8,
        # A problem of which no rollout got a verdict is replaced; of other groups those without one are left out.
        "trainer.v1.sampler.sync_refill_failed_groups": bool(p.verl.code_server),
    }


def lacks_flash_attention(p: Profile, work: Work) -> bool:
    """Whether a job on GPUs must do without: verl then cannot tell the sequences of a packed row apart."""
    return p.run.device != "cpu" and p.verl.strategy != "megatron" and not work.has_flash_attention


def is_padded(p: Profile, work: Work) -> bool:
    """Whether the rows of a pass are padded to the longest of them, instead of packed into one."""
    return p.run.device == "cpu" or lacks_flash_attention(p, work)


def padded_rows(p: Profile) -> int:
    """Rows of a pass that hold `verl.tokens_per_gpu` positions at full length; divides the rows that a GPU trains on.

    verl's dynamic passes count tokens without padding, so that many short rows beside one long row take several times
    the memory of the plan (measured: 59 GiB in place of 21).
    """
    length = p.sampling.max_prompt_tokens + p.sampling.max_completion_tokens
    rows = p.grpo.groups_per_step // p.optimizer.updates_per_step * p.grpo.group_size // training_gpus(p)
    most = max(1, min(rows, p.verl.tokens_per_gpu // length))
    return next(count for count in range(most, 0, -1) if rows % count == 0)


def _passes(p: Profile, work: Work) -> Settings:
    """How rows are divided into passes of model and reference."""
    actor, others = "actor_rollout_ref.actor", ("actor_rollout_ref.rollout", "actor_rollout_ref.ref")
    if not is_padded(p, work):
        return {f"{actor}.use_dynamic_bsz": True, f"{actor}.ppo_max_token_len_per_gpu": p.verl.tokens_per_gpu}
    found: Settings = {f"{actor}.use_dynamic_bsz": False, f"{actor}.ppo_micro_batch_size_per_gpu": padded_rows(p)}
    return found | {f"{other}.log_prob_micro_batch_size_per_gpu": padded_rows(p) for other in others}


def _model(p: Profile, work: Work) -> Settings:
    found: Settings = {
        "actor_rollout_ref.model.path": str(work.model),
        "actor_rollout_ref.model.tokenizer_path": str(work.tokenizer),
        "actor_rollout_ref.model.custom_chat_template": PASS_THROUGH,
        "actor_rollout_ref.model.enable_gradient_checkpointing": p.model.gradient_checkpointing,
        "actor_rollout_ref.model.use_remove_padding": not is_padded(p, work),
    }
    if is_padded(p, work):
        found["+actor_rollout_ref.model.override_config.attn_implementation"] = "sdpa"
    if not p.adapter.rank:
        return found
    name = "actor_rollout_ref.model.lora"
    # Merged before each sync: the engine then holds plain weights, of which every tensor can be compared.
    found[f"{name}.merge"] = True
    if p.verl.strategy == "megatron":
        return found | {f"{name}.rank": p.adapter.rank, f"{name}.alpha": round(p.adapter.alpha)}
    return found | {
        f"{name}_rank": p.adapter.rank,
        f"{name}_alpha": round(p.adapter.alpha),
        "actor_rollout_ref.model.target_modules": list(p.adapter.targets),
        "+actor_rollout_ref.actor.checkpoint.save_lora_only": True,
    }


def _actor(p: Profile, work: Work) -> Settings:
    actor, optimizer = "actor_rollout_ref.actor", p.optimizer
    found: Settings = {
        f"{actor}.ppo_mini_batch_size": p.grpo.groups_per_step // optimizer.updates_per_step,
        f"{actor}.ppo_epochs": p.grpo.inner_epochs,
        f"{actor}.clip_ratio_low": optimizer.clip_ratio_low,
        f"{actor}.clip_ratio_high": optimizer.clip_ratio_high,
        f"{actor}.loss_agg_mode": AGGREGATION[p.grpo.norm],
        f"{actor}.entropy_coeff": optimizer.entropy_coef,
        f"{actor}.use_kl_loss": p.grpo.kl_coef > 0 and p.verl.kl_in == "loss",
        f"{actor}.kl_loss_coef": p.grpo.kl_coef,
        f"{actor}.use_torch_compile": p.run.device != "cpu",
        f"{actor}.optim.lr": optimizer.learning_rate,
        f"{actor}.optim.lr_warmup_steps": optimizer.warmup_steps,
        f"{actor}.optim.weight_decay": optimizer.weight_decay,
        f"{actor}.optim.betas": list(optimizer.betas),
        f"{actor}.optim.clip_grad": optimizer.max_grad_norm,
    }
    if p.verl.strategy == "megatron":
        found |= {
            "model_engine": "megatron",
            f"{actor}.megatron.tensor_model_parallel_size": p.verl.train_tensor_parallel,
            f"{actor}.megatron.pipeline_model_parallel_size": p.verl.pipeline_parallel,
            f"{actor}.megatron.param_offload": optimizer.offload,
            f"{actor}.megatron.optimizer_offload": optimizer.offload,
        }
        return found
    return found | {
        f"{actor}.strategy": "fsdp2",
        f"{actor}.grad_clip": optimizer.max_grad_norm,
        f"{actor}.fsdp_config.use_torch_compile": p.run.device != "cpu",
        f"{actor}.fsdp_config.dtype": p.model.dtype,
        f"{actor}.fsdp_config.param_offload": optimizer.offload,
        f"{actor}.fsdp_config.optimizer_offload": optimizer.offload,
    }


def _rollout(p: Profile, work: Work) -> Settings:
    rollout, vllm = "actor_rollout_ref.rollout", p.vllm
    found: Settings = {
        f"{rollout}.name": "vllm" if p.sampling.engine == "vllm" else "longhaul",
        f"{rollout}.n": p.grpo.group_size,
        f"{rollout}.temperature": p.sampling.temperature,
        f"{rollout}.seed": p.run.seed,
        f"{rollout}.tensor_model_parallel_size": p.verl.tensor_parallel,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.n_gpus_per_node": p.verl.rollout_gpus or p.run.gpus,
        f"{rollout}.agent.default_agent_loop": "longhaul",
        f"{rollout}.agent.num_workers": 1 if p.run.device == "cpu" else 8,
    }
    if p.sampling.engine == "vllm":
        found |= {
            f"{rollout}.dtype": vllm.dtype,
            f"{rollout}.gpu_memory_utilization": vllm.gpu_memory_utilization,
            f"{rollout}.max_num_seqs": vllm.max_num_seqs,
            f"{rollout}.max_num_batched_tokens": vllm.max_num_batched_tokens,
            f"{rollout}.enable_prefix_caching": vllm.enable_prefix_caching,
            f"{rollout}.enforce_eager": vllm.enforce_eager,
            f"{rollout}.free_cache_engine": vllm.sleep and not p.verl.rollout_gpus,
        }
    if p.verl.rollout_gpus:
        found |= {
            f"{rollout}.nnodes": p.run.hosts,
            f"{rollout}.checkpoint_engine.backend": "nccl",
            "actor_rollout_ref.hybrid_engine": False,
            "trainer.v1.trainer_mode": "separate_async",
            "trainer.v1.separate_async.num_warmup_batches": 1,
            "trainer.v1.separate_async.parameter_sync_step": 1,
        }
    return found


def _algorithm(p: Profile, work: Work) -> Settings:
    found: Settings = {
        "algorithm.adv_estimator": "rloo" if p.grpo.advantage == "rloo" else "grpo",
        "algorithm.norm_adv_by_std_in_grpo": p.grpo.advantage != "mean_only",
        "algorithm.use_kl_in_reward": p.grpo.kl_coef > 0 and p.verl.kl_in == "reward",
        "algorithm.kl_ctrl.kl_coef": p.grpo.kl_coef,
        "algorithm.filter_groups.enable": p.grpo.dynamic_sampling,
        "algorithm.filter_groups.metric": "acc",
    }
    cap = p.optimizer.tis_cap
    if cap == -1:
        cap = DEFAULT_TIS_CAP if p.sampling.engine == "vllm" else 0.0
    if cap > 0:
        found["algorithm.rollout_correction.rollout_is"] = "token"
        found["algorithm.rollout_correction.rollout_is_threshold"] = cap
    return found


def _trainer(p: Profile, work: Work) -> Settings:
    """verl saves when `plugin.py` says so, and validates after the last step alone."""
    return {
        "trainer.nnodes": p.run.hosts,
        "trainer.n_gpus_per_node": p.run.gpus - p.verl.rollout_gpus,
        "trainer.device": "cpu" if p.run.device == "cpu" else "cuda",
        "trainer.total_training_steps": max(1, work.last_step),
        "trainer.total_epochs": ENDLESS,
        "trainer.save_freq": -1,
        "trainer.test_freq": ENDLESS,  # after the last step, whatever its number
        "trainer.val_before_train": work.is_validation,
        "trainer.val_only": work.is_validation,
        "trainer.validation_data_dir": str(work.answers),
        "trainer.default_local_dir": str(work.checkpoints),
        "trainer.resume_mode": "resume_path" if work.resume else "disable",
        "trainer.resume_from_path": str(work.resume) if work.resume else None,
        "trainer.project_name": "longhaul",
        "trainer.experiment_name": p.name,
        "trainer.logger": ["console", "file"],
        "hydra.run.dir": str(work.folder / "hydra"),
    }


def _ray(p: Profile, work: Work) -> Settings:
    init = "ray_kwargs.ray_init"
    found: Settings = {}
    if p.run.device == "cpu":
        found["transfer_queue.backend.SimpleStorage.num_data_storage_units"] = 1
    if work.address:
        found[f"+{init}.address"] = work.address
    else:
        found[f"+{init}.include_dashboard"] = False
        found[f"+{init}._temp_dir"] = work.spool
        if p.run.device == "cpu":
            found[f"+{init}.num_gpus"] = p.run.gpus
            found[f"{init}.num_cpus"] = CPU_PLACES
            found[f"+{init}.object_store_memory"] = CPU_STORE_BYTES
    for name, value in sorted(work.environment.items()):
        found[f"+{init}.runtime_env.env_vars.{name}"] = value
    return found
