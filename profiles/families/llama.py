"""Llama, and the many models saved in its format."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import Architecture
from profiles.family import Family, Fields, biases_of, usual


def describe(fields: Fields) -> Architecture:
    if "sliding_attention" in (fields.get("layer_types") or ()):
        fields.refuse("layer_types")  # transformers' code gives no layer a window
    return replace(usual(fields), biases=biases_of(fields))


FAMILY = Family("llama", "LlamaForCausalLM", describe, is_compared=True, is_left_padded=True)
