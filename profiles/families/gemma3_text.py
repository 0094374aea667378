"""Gemma 3 without images: like Gemma 2, with norms of queries and keys, and two rotary embeddings."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import ATTENTION, Architecture
from profiles.family import Family, Fields, usual, window_of


def describe(fields: Fields) -> Architecture:
    found = usual(fields, window=window_of(fields), activation="hidden_activation", has_ropes=True)
    fields.get("_sliding_window_pattern")  # `layer_types` has the same information
    return replace(
        found,
        norm=replace(found.norm, plus_one=True, after=True),
        qk_norm=True,
        biases=ATTENTION if fields.get("attention_bias", False) else frozenset[str](),
        embedding_scale=fields.get("hidden_size", 2304) ** 0.5,
        attention_scale=fields.get("query_pre_attn_scalar", 256, fills="attention_scale") ** -0.5,
        attention_cap=fields.get("attn_logit_softcapping", fills="attention_cap"),
        logit_cap=fields.get("final_logit_softcapping", fills="logit_cap"),
    )


FAMILY = Family("gemma3_text", "Gemma3ForCausalLM", describe, is_left_padded=True)
