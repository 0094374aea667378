"""Decides from numbers alone whether vLLM can work here, before anyone spends minutes starting it. (pure)"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.schema import Vllm as Knobs
from profiles.vllm_rules import RANKS

GIB = 2**30
OLDEST = (7, 0)
"""Compute capability of the oldest GPUs that vLLM supports; bfloat16 needs (8, 0)."""
ACTIVATIONS = 1.1
"""Lower bound of the memory for weights, cache and a forward pass, as a multiple of weights and cache."""


@dataclass(frozen=True)
class Device:
    """The GPU as torch sees it."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Need:
    """What the model needs, in vLLM's precision."""

    weight_bytes: int
    cache_bytes_per_token: int
    sequence_tokens: int
    """Longest prompt plus completion."""
    adapter_rank: int = 0
    """0: no adapter."""


def cache_bytes_per_token(width: int, dtype: str) -> int:
    """Bytes of one token's keys and values. width: of the keys of all layers."""
    return 2 * width * (4 if dtype == "float32" else 2)


def refusal(device: Device | None, knobs: Knobs, need: Need, *, num_processes: int = 1) -> str:
    """Why vLLM cannot start, with both numbers and the knob to change; empty if it can."""
    if need.adapter_rank > RANKS[-1]:
        return f"the adapter has rank {need.adapter_rank}, above the largest that it supports, {RANKS[-1]}"
    if device is None:
        return "it needs an NVIDIA GPU, and torch sees none here"
    if num_processes > 1:
        return f"it works beside a trainer of one process, and this one has {num_processes}"
    if device.capability < OLDEST:
        return f"{device.name} has compute capability {_dotted(device.capability)}, it needs {_dotted(OLDEST)}"
    if knobs.dtype == "bfloat16" and device.capability < (8, 0):
        return (
            f"{device.name} has compute capability {_dotted(device.capability)}, and bfloat16 needs 8.0: set "
            'vllm.dtype = "float16"'
        )
    budget = int(knobs.gpu_memory_utilization * device.total_bytes)
    least = int((need.weight_bytes + need.sequence_tokens * need.cache_bytes_per_token) * ACTIVATIONS)
    if least > budget:
        share = least / device.total_bytes
        advice = (
            f"set vllm.gpu_memory_utilization to {_up(share)} at least"
            if share <= 0.95
            else "this GPU is too small for the model in that precision"
        )
        return (
            f"weights and one rollout of {need.sequence_tokens} tokens need {_gib(least)}, and "
            f"vllm.gpu_memory_utilization = {knobs.gpu_memory_utilization:g} of {device.name} is {_gib(budget)}: "
            f"{advice}"
        )
    if device.free_bytes < budget:
        share = device.free_bytes / device.total_bytes
        return (
            f"vllm.gpu_memory_utilization = {knobs.gpu_memory_utilization:g} of {device.name} is {_gib(budget)}, and "
            f"{_gib(device.free_bytes)} are free beside the trainer: set it below {share:.2f}, or free memory"
        )
    return ""


def room_for(rank: int) -> int:
    """The smallest adapter slot that holds `rank`. Raises ValueError if none does; `refusal` rules that out."""
    for size in RANKS:
        if rank <= size:
            return size
    raise ValueError(f"an adapter of rank {rank} is larger than vLLM's largest, {RANKS[-1]}")


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"


def _up(share: float) -> str:
    return f"{int(share * 100) / 100 + 0.01:.2f}"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
