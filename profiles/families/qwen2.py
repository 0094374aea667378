"""Qwen2 and Qwen2.5: biases only on queries, keys and values, and an optional sliding window."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import QKV, Architecture
from profiles.family import Family, Fields, late_windows, usual


def describe(fields: Fields) -> Architecture:
    kinds, window = late_windows(fields)
    return replace(usual(fields, window=window, kinds=kinds), biases=QKV)


FAMILY = Family("qwen2", "Qwen2ForCausalLM", describe, is_compared=True, is_left_padded=True)
