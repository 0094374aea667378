"""Mistral: a Llama whose layers may have a sliding window."""

from __future__ import annotations

from profiles.description import Architecture
from profiles.family import Family, Fields, usual, window_of


def describe(fields: Fields) -> Architecture:
    fields.refuse_unless_off("layer_types")  # transformers' code gives all layers the same window
    return usual(fields, window=window_of(fields))


FAMILY = Family("mistral", "MistralForCausalLM", describe, is_compared=True, is_left_padded=True)
