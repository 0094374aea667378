"""Ministral 3: a Mistral whose queries grow beyond the original context."""

from __future__ import annotations

from profiles.description import Architecture
from profiles.family import Family, Fields, usual

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "llama_4_scaling_beta": 0.1,
}


def describe(fields: Fields) -> Architecture:
    fields.refuse_unless_off("layer_types")  # transformers' code gives all layers the same window
    return usual(fields, window=fields.get("sliding_window"))


FAMILY = Family(
    "ministral3",
    "Ministral3ForCausalLM",
    describe,
    defaults={"head_dim": 128, "rope_parameters": YARN},
    is_compared=True,
    is_left_padded=True,
)
