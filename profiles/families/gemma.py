"""Gemma: embeddings are scaled by the square root of their width, norms by one plus their weight."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import Architecture
from profiles.family import Family, Fields, biases_of, usual


def describe(fields: Fields) -> Architecture:
    fields.refuse_unless_off("use_bidirectional_attention")
    fields.get("hidden_activation")  # not read by transformers
    found = usual(fields)
    return replace(
        found,
        norm=replace(found.norm, plus_one=True),
        biases=biases_of(fields),
        activation="gelu_pytorch_tanh" if found.activation == "gelu" else found.activation,  # as transformers reads it
        embedding_scale=fields.get("hidden_size", 3072) ** 0.5,
        embedding_is_scaled=True,
    )


FAMILY = Family(
    "gemma",
    "GemmaForCausalLM",
    describe,
    defaults={"head_dim": 256, "hidden_act": "gelu_pytorch_tanh"},
    is_compared=True,
    is_left_padded=True,
)
