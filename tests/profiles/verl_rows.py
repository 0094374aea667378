"""Knobs of the worker verl that are fine one by one and wrong together: rule, wrong knobs, and right ones."""

from __future__ import annotations

from typing import Any

import pytest

Knobs = dict[str, Any]
VERL: Knobs = {
    "run.worker": "verl", "run.device": "cuda", "run.gpus": 4, "model.path": "m", "model.prompt_style": "boxed",
    "sampling.engine": "vllm", "validation.suites": ("gsm8k",), "validation.sampled": False,
    "validation.all_within": 0.0, "grpo.advantage": "rloo", "grpo.truncated": "keep", "grpo.uniform": "keep",
    "grpo.variants.std_ddof": 1,
}  # fmt: skip
ON_CPU: Knobs = {**VERL, "run.device": "cpu", "sampling.engine": "hf"}


def row(rule: str, wrong: Knobs, right: Knobs, base: Knobs = VERL) -> Any:
    return pytest.param(rule, {**base, **wrong}, {**base, **right}, id=rule)


VERL_ROWS = [
    row("overlap_has_a_worker", {"run.overlap": 1}, {"run.overlap": 0}),
    row("verl_computes_it", {"grpo.truncated": "mask"}, {"grpo.advantage": "mean_only"}),
    row("verl_leaves_out_uniform_groups_by_drawing_others", {"grpo.uniform": "skip"},
        {"grpo.uniform": "skip", "grpo.dynamic_sampling": True}),
    row("verl_has_a_rollout_engine", {"sampling.engine": "native"}, {}),
    row("engines_divide_the_gpus", {"verl.tensor_parallel": 3}, {"verl.tensor_parallel": 4}),
    row("megatron_divides_the_gpus", {"verl.train_tensor_parallel": 2},
        {"verl.train_tensor_parallel": 2, "verl.strategy": "megatron"}),
    row("rollouts_divide_over_the_gpus", {"grpo.group_size": 9}, {"grpo.group_size": 10}),
    row("a_pass_holds_a_rollout", {"verl.tokens_per_gpu": 191}, {"verl.tokens_per_gpu": 192}),
    row("one_step_off_needs_a_gpu", {"verl.rollout_gpus": 2}, {}, ON_CPU),
    row("one_step_off_has_one_update", {"verl.rollout_gpus": 2, "optimizer.updates_per_step": 2},
        {"verl.rollout_gpus": 2}),
    row("a_code_server_can_be_reached", {"verl.code_server": "localhost:8123"}, {"verl.code_server": "http://h:1/s"}),
    row("a_code_server_can_be_reached", {"verl.code_server": "start", "run.hosts": 2},
        {"verl.code_server": "start", "run.hosts": 2, "launch.interface": "ib0"}),
    row("hosts_have_a_network", {"run.hosts": 2, "launch.launcher": "slurm"},
        {"run.hosts": 2, "launch.launcher": "slurm", "launch.interface": "ib0"}),
    row("hosts_of_open_instruct_come_from_ray",
        {"run.worker": "open_instruct", "run.hosts": 2, "launch.launcher": "slurm"},
        {"run.worker": "open_instruct", "run.hosts": 2, "launch.launcher": "local"}),
]  # fmt: skip
