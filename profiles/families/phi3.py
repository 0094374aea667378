"""Phi-3 and Phi-4-mini: one layer for queries, keys and values, one for gate and up; part of a head is rotated."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import FUSED, Architecture
from profiles.family import Family, Fields, rope_of, usual


def describe(fields: Fields) -> Architecture:
    fields.refuse_unless("full_attn_mod", 1)
    fields.refuse_unless("interpolate_factor", 1)
    fields.get("original_max_position_embeddings")  # transformers moves it into the rotary embedding's parameters
    ropes = {"": rope_of(fields, is_partial=True)}
    return replace(usual(fields, window=fields.get("sliding_window"), ropes=ropes), fused=frozenset(FUSED))


FAMILY = Family(
    "phi3", "Phi3ForCausalLM", describe, defaults={"rms_norm_eps": 1e-5}, is_compared=True, is_left_padded=True
)
