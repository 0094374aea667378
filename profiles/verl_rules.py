"""The rules of `run.worker = "verl"`: what verl computes, and how GPUs divide the work; rules.py has them. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.finding import Finding
from profiles.knobs import value_of
from profiles.refusal import toml_text
from profiles.schema import Profile
from profiles.verl import OWN_SERVER

COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "grpo.advantage": ("group_std_eps", "mean_only", "rloo"),
    "grpo.truncated": ("keep",),
    "grpo.old_source": ("auto", "trainer"),
    "grpo.entropy_mask": ("off",),
    "grpo.rewards": (("correct",),),
    "grpo.variants.std_ddof": (1,),
    "grpo.variants.low_entropy_kl": (0.0,),
    "grpo.variants.ratio_level": ("token",),
    "grpo.variants.ratio_cap": (0.0,),
    "grpo.variants.random_rewards": (False,),
    "grpo.sent.enabled": (False,),
    "model.quantization": ("none",),
    "optimizer.kind": ("adamw",),
    "optimizer.decay_steps": (0,),
    "adapter.rslora": (False,),
    "data.on_exhausted": ("reshuffle",),
    "validation.sampled": (False,),
    "validation.all_within": (0.0,),
    "sampling.fallback": ((),),
}
"""Knobs of which verl computes some values alone."""


def verl_computes_it(p: Profile) -> Finding | None:
    if p.run.worker != "verl":
        return None
    wrong = [name for name, values in COMPUTED.items() if value_of(p, name) not in values]
    if not wrong:
        return None
    needed = "; ".join(f"{name} = {' or '.join(map(toml_text, COMPUTED[name]))}" for name in wrong)
    return Finding((*wrong, "run.worker"), f"has a value that verl does not compute: it needs {needed}")


def verl_leaves_out_uniform_groups_by_drawing_others(p: Profile) -> Finding | None:
    if p.run.worker != "verl" or p.grpo.uniform == ("skip" if p.grpo.dynamic_sampling else "keep"):
        return None
    return Finding(
        ("grpo.uniform", "grpo.dynamic_sampling", "run.worker"),
        'must be "keep", or "skip" with dynamic_sampling = true: verl trains on uniform groups unless it draws others',
    )


def verl_has_a_rollout_engine(p: Profile) -> Finding | None:
    """Plain transformers is what CPUs have, and so slow that it only tries the path."""
    if p.run.worker != "verl" or p.sampling.engine == ("hf" if p.run.device == "cpu" else "vllm"):
        return None
    return Finding(
        ("sampling.engine", "run.device", "run.worker"),
        'must be "vllm", or "hf" with device = "cpu": verl has no other engine of ours',
    )


def engines_divide_the_gpus(p: Profile) -> Finding | None:
    if p.run.worker != "verl":
        return None
    tp, drawing = p.verl.tensor_parallel, p.verl.rollout_gpus or p.run.gpus
    if drawing >= p.run.gpus and p.verl.rollout_gpus:
        return Finding(("verl.rollout_gpus", "run.gpus"), f"leaves none of the {p.run.gpus} GPUs of a host to train on")
    if drawing % tp:
        return Finding(
            ("verl.tensor_parallel", "run.gpus", "verl.rollout_gpus"),
            f"does not divide the {drawing} GPUs of a host that draw rollouts",
        )
    return None


def rollouts_divide_over_the_gpus(p: Profile) -> Finding | None:
    if p.run.worker != "verl":
        return None
    per_update, rest = divmod(p.grpo.groups_per_step, p.optimizer.updates_per_step)
    if rest:
        return Finding(
            ("grpo.groups_per_step", "optimizer.updates_per_step"),
            f"is not a multiple of updates_per_step ({p.optimizer.updates_per_step}), which verl needs",
        )
    ranks = max(1, training_ranks(p))  # 0 where another rule speaks
    if per_update * p.grpo.group_size % ranks:
        return Finding(
            ("grpo.groups_per_step", "grpo.group_size", "optimizer.updates_per_step", "run.gpus", "run.hosts"),
            f"makes {per_update * p.grpo.group_size} rollouts for each update, which {ranks} training ranks do not "
            "divide evenly",
        )
    return None


def training_ranks(p: Profile) -> int:
    """Parts into which the rollouts of an update are divided. (pure)"""
    return training_gpus(p) // (p.verl.train_tensor_parallel * p.verl.pipeline_parallel)


def training_gpus(p: Profile) -> int:
    """GPUs that hold a part of the weights that are trained. (pure)"""
    return (p.run.gpus - p.verl.rollout_gpus) * p.run.hosts


def megatron_divides_the_gpus(p: Profile) -> Finding | None:
    if p.run.worker != "verl":
        return None
    parts = p.verl.train_tensor_parallel * p.verl.pipeline_parallel
    knobs = ("verl.train_tensor_parallel", "verl.pipeline_parallel", "verl.strategy")
    if p.verl.strategy != "megatron" and parts > 1:
        return Finding(knobs, 'divides layers, which only strategy = "megatron" does')
    if training_gpus(p) % parts:
        return Finding((*knobs, "run.gpus"), f"makes {parts} parts, which do not divide {training_gpus(p)} GPUs")
    return None


def a_pass_holds_a_rollout(p: Profile) -> Finding | None:
    longest = p.sampling.max_prompt_tokens + p.sampling.max_completion_tokens
    if p.run.worker != "verl" or p.verl.tokens_per_gpu >= longest:
        return None
    return Finding(
        ("verl.tokens_per_gpu", "sampling.max_prompt_tokens", "sampling.max_completion_tokens"),
        f"is less than the longest rollout ({longest} tokens)",
    )


def one_step_off_needs_a_gpu(p: Profile) -> Finding | None:
    if p.run.worker != "verl" or not p.verl.rollout_gpus or p.run.device != "cpu":
        return None
    return Finding(("verl.rollout_gpus", "run.device"), "moves weights between GPUs by NCCL, and a CPU has none: say 0")


def one_step_off_has_one_update(p: Profile) -> Finding | None:
    if p.run.worker != "verl" or not p.verl.rollout_gpus or p.optimizer.updates_per_step == 1:
        return None
    return Finding(
        ("optimizer.updates_per_step", "verl.rollout_gpus"),
        "must be 1 where other GPUs draw the rollouts: verl syncs weights after each update then",
    )


def a_code_server_can_be_reached(p: Profile) -> Finding | None:
    server = p.verl.code_server
    if p.run.worker != "verl" or not server or server.startswith(("http://", "https://")):
        return None
    if server != OWN_SERVER:
        return Finding(("verl.code_server",), f'must be "{OWN_SERVER}", or a URL that begins with http://')
    if p.run.hosts == 1 or p.launch.interface:
        return None
    return Finding(
        ("launch.interface", "verl.code_server", "run.hosts"),
        "names the network interface between the hosts, such as `ib0`: rollouts are judged on all of them",
    )


RULES = (
    verl_computes_it,
    verl_leaves_out_uniform_groups_by_drawing_others,
    verl_has_a_rollout_engine,
    engines_divide_the_gpus,
    megatron_divides_the_gpus,
    rollouts_divide_over_the_gpus,
    a_pass_holds_a_rollout,
    one_step_off_needs_a_gpu,
    one_step_off_has_one_update,
    a_code_server_can_be_reached,
)
