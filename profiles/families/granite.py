"""Granite: a Llama with four scales."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import ATTENTION, MLP, Architecture
from profiles.family import Family, Fields, usual


def describe(fields: Fields) -> Architecture:
    biases = ATTENTION if fields.get("attention_bias", False) else frozenset[str]()
    biases |= MLP if fields.get("mlp_bias", False) else frozenset[str]()
    return replace(
        usual(fields),
        biases=biases,
        embedding_scale=fields.get("embedding_multiplier", 1.0, fills="embedding_scale"),
        residual_scale=fields.get("residual_multiplier", 1.0, fills="residual_scale"),
        attention_scale=fields.get("attention_multiplier", 1.0, fills="attention_scale"),
        logit_scale=1 / fields.get("logits_scaling", 1.0, fills="logit_scale"),
    )


FAMILY = Family("granite", "GraniteForCausalLM", describe, is_left_padded=True)
