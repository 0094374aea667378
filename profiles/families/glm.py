"""GLM: gate and up are one layer, and half of a head is rotated, even dimensions with odd ones."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import QKV, Architecture
from profiles.family import Family, Fields, biases_of, rope_of, usual


def describe(fields: Fields) -> Architecture:
    ropes = {"": rope_of(fields, is_partial=True, is_interleaved=True)}
    biases = biases_of(fields, attention=QKV, has_biases=True)
    return replace(usual(fields, ropes=ropes), biases=biases, fused=frozenset({"gate_up_proj"}))


FAMILY = Family(
    "glm",
    "GlmForCausalLM",
    describe,
    defaults={"head_dim": 128, "rms_norm_eps": 1.5625e-07, "partial_rotary_factor": 0.5},
    is_compared=True,
    is_left_padded=True,
)
