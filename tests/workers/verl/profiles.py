"""Profiles of the worker verl for tests."""

from __future__ import annotations

from typing import Any

from profiles.knobs import with_values
from profiles.load import load_profile
from profiles.schema import Profile


def debug(**values: Any) -> Profile:
    """`verl-debug`; knobs as section__key."""
    return with_values(load_profile("verl-debug").profile, _named(values))


def large(**values: Any) -> Profile:
    """32B on 8 nodes of 4 GPUs."""
    base = {
        "run__device": "cuda",
        "run__hosts": 8,
        "run__gpus": 4,
        "model__path": "/models/32b",
        "model__prompt_style": "boxed-chat",
        "model__dtype": "bfloat16",
        "model__gradient_checkpointing": True,
        "sampling__engine": "vllm",
        "sampling__max_prompt_tokens": 2048,
        "sampling__max_completion_tokens": 8192,
        "verl__tensor_parallel": 4,
        "verl__tokens_per_gpu": 10240,
        "grpo__groups_per_step": 32,
        "grpo__group_size": 8,
    }
    return debug(**(base | values))


def _named(values: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in values.items()}
