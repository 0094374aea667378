"""Qwen2 and Qwen2.5: biases on queries, keys and values alone, and a window that has to be switched on."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import QKV, Architecture
from profiles.family import Family, Fields, usual, window_of


def describe(fields: Fields) -> Architecture:
    # Without `layer_types` every layer is taken to have the window: older files count its layers from another end.
    window = window_of(fields) if fields.get("use_sliding_window", False) else None
    return replace(usual(fields, window=window), biases=QKV)


FAMILY = Family("qwen2", "Qwen2ForCausalLM", describe, is_compared=True, is_left_padded=True)
