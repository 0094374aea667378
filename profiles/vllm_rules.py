"""Rules for vLLM, each returning a Finding or None; none raises. (pure)"""

from __future__ import annotations

from profiles.finding import Finding
from profiles.schema import Profile

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM supports (its `max_lora_rank`)."""


def vllm_batches_hold_a_token_each(p: Profile) -> Finding | None:
    if p.vllm.max_num_batched_tokens >= p.vllm.max_num_seqs:
        return None
    return Finding(
        ("vllm.max_num_batched_tokens", "vllm.max_num_seqs"),
        f"is less than max_num_seqs ({p.vllm.max_num_seqs}): every decoding rollout needs one token in each pass",
    )


def vllm_has_a_gpu(p: Profile) -> Finding | None:
    if p.sampling.engine != "vllm" or p.run.device != "cpu" or p.sampling.fallback:
        return None
    return Finding(("sampling.engine", "run.device"), 'is "vllm", which needs a GPU, but run.device is "cpu"')


def vllm_has_room_for_the_adapter(p: Profile) -> Finding | None:
    if "vllm" not in (p.sampling.engine, *p.sampling.fallback) or p.adapter.rank <= RANKS[-1]:
        return None
    return Finding(
        ("adapter.rank", "sampling.engine", "sampling.fallback"),
        f"is more than vLLM supports ({RANKS[-1]}); every other engine takes any rank",
    )


RULES = (vllm_batches_hold_a_token_each, vllm_has_a_gpu, vllm_has_room_for_the_adapter)
