"""Qwen2 and Qwen2.5: biases only on queries, keys and values, and an optional sliding window."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import QKV, Architecture
from profiles.family import Family, Fields, usual, window_of


def describe(fields: Fields) -> Architecture:
    # Without `layer_types`, assume the window for every layer: older files count its layers from the other end.
    window = window_of(fields) if fields.get("use_sliding_window", False) else None
    return replace(usual(fields, window=window), biases=QKV)


FAMILY = Family("qwen2", "Qwen2ForCausalLM", describe, is_compared=True, is_left_padded=True)
