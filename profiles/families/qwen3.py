"""Qwen3: normalised queries and keys, and an optional sliding window."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import Architecture
from profiles.family import Family, Fields, biases_of, late_windows, usual


def describe(fields: Fields) -> Architecture:
    kinds, window = late_windows(fields)
    return replace(usual(fields, window=window, kinds=kinds), biases=biases_of(fields), qk_norm="head")


FAMILY = Family(
    "qwen3", "Qwen3ForCausalLM", describe, defaults={"head_dim": 128}, is_compared=True, is_left_padded=True
)
