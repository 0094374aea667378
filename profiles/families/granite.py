"""Granite: a Llama with four scales."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import Architecture
from profiles.family import Family, Fields, biases_of, usual


def describe(fields: Fields) -> Architecture:
    return replace(
        usual(fields),
        biases=biases_of(fields),
        embedding_scale=fields.get("embedding_multiplier", 1.0, fills="embedding_scale"),
        residual_scale=fields.get("residual_multiplier", 1.0, fills="residual_scale"),
        attention_scale=fields.get("attention_multiplier", 1.0, fills="attention_scale"),
        logit_scale=1 / fields.get("logits_scaling", 1.0, fills="logit_scale"),
    )


FAMILY = Family("granite", "GraniteForCausalLM", describe, is_compared=True, is_left_padded=True)
