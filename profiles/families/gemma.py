"""Gemma: embeddings are scaled by the square root of their width, norms by one plus their weight."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import ATTENTION, Architecture
from profiles.family import Family, Fields, usual


def describe(fields: Fields) -> Architecture:
    found = usual(fields)
    return replace(
        found,
        norm=replace(found.norm, plus_one=True),
        biases=ATTENTION if fields.get("attention_bias", False) else frozenset[str](),
        embedding_scale=fields.get("hidden_size", 3072) ** 0.5,
    )


FAMILY = Family("gemma", "GemmaForCausalLM", describe, is_left_padded=True)
