"""Qwen3: normalised queries and keys, and an optional sliding window."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import ATTENTION, Architecture
from profiles.family import Family, Fields, usual, window_of


def describe(fields: Fields) -> Architecture:
    biases = ATTENTION if fields.get("attention_bias", False) else frozenset[str]()
    window = window_of(fields) if fields.get("use_sliding_window", False) else None
    return replace(usual(fields, window=window), biases=biases, qk_norm=True)


FAMILY = Family("qwen3", "Qwen3ForCausalLM", describe, is_left_padded=True)
