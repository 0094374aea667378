"""Eighteen imports: 8, 16 and 20 hosts, rehearsal and production, maths, code and KL. golden/ has what they become.

    python -m tests.orchestrator.open_instruct.bundles

writes those files again after a change that was meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from orchestrator.cluster_plan import Cluster
from orchestrator.job_time import JobTime
from orchestrator.open_instruct.findings import Reading, read_for
from orchestrator.open_instruct.render import corrected_yaml
from profiles.footprint import GIB
from profiles.shapes import CLUSTER_ARCHITECTURES, shape_of

GOLDEN = Path(__file__).parent / "golden"
SHAPE = shape_of(CLUSTER_ARCHITECTURES["olmo3-32b"])
GUIDE: dict[str, Any] = {
    "model_name_or_path": "allenai/Olmo-3-1125-32B",
    "deepspeed_stage": 3,
    "gradient_checkpointing": True,
    "beta": 0.0,
    "load_ref_policy": False,
    "truncated_importance_sampling_ratio_cap": 2.0,
    "num_learners_per_node": [1],
    "num_unique_prompts_rollout": 8,
    "num_samples_per_prompt_rollout": 4,
    "max_prompt_token_length": 1024,
    "response_length": 4096,
    "pack_length": 5120,
    "total_episodes": 10,
    "save_freq": 200,
    "local_eval_every": -1,
    "vllm_num_engines": 24,
    "vllm_tensor_parallel_size": 2,
    "vllm_gpu_memory_utilization": 0.55,
    "push_to_hub": False,
}
"""The guide's memory test, with its 24 engines."""
PRODUCTION: dict[str, Any] = {
    "num_unique_prompts_rollout": 32,
    "num_samples_per_prompt_rollout": 8,
    "response_length": 8192,
    "pack_length": 10_240,
    "total_episodes": 10_000,
    "local_eval_every": 50,
}
"""What it changes for the real run."""
TASKS: dict[str, dict[str, Any]] = {
    "math": {"attn_implementation": "sdpa", "stop_strings": ["</answer>"]},
    "code": {"code_pass_rate_reward_threshold": 0.0, "code_max_execution_time": 5.0},
    "kl": {"beta": 0.01},
}


def reading(settings: dict[str, Any], hosts: int = 8, gpus: int = 4, time: JobTime | None = None) -> Reading:
    return read_for(settings, SHAPE, Cluster(hosts, gpus, int(95.6 * GIB)), time)


def bundles() -> Iterator[tuple[str, Reading]]:
    """Name -> import."""
    for hosts, (stage, more), (task, own) in product(
        (8, 16, 20), {"debug": {}, "production": PRODUCTION}.items(), TASKS.items()
    ):
        yield f"{task}-{stage}-{hosts}", reading(GUIDE | more | own, hosts)


def main() -> None:
    for name, one in bundles():
        (GOLDEN / f"{name}.yaml").write_text(corrected_yaml(one, "guide.yaml"), encoding="utf-8")


if __name__ == "__main__":
    main()
