"""Llama, and the many models saved in its format."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import ATTENTION, MLP, Architecture
from profiles.family import Family, Fields, usual, window_of


def describe(fields: Fields) -> Architecture:
    biases = ATTENTION if fields.get("attention_bias", False) else frozenset[str]()
    biases |= MLP if fields.get("mlp_bias", False) else frozenset[str]()
    window = window_of(fields) if fields.get("layer_types") else None
    return replace(usual(fields, window=window), biases=biases)


FAMILY = Family("llama", "LlamaForCausalLM", describe, is_compared=True, is_left_padded=True)
