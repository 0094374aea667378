"""GLM-4: a GLM with norms before and after each part."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import QKV, Architecture, NormNames
from profiles.family import Family, Fields, biases_of, rope_of, usual

NAMES = NormNames("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


def describe(fields: Fields) -> Architecture:
    found = usual(fields, ropes={"": rope_of(fields, is_partial=True, is_interleaved=True)})
    return replace(
        found,
        norm=replace(found.norm, names=NAMES),
        biases=biases_of(fields, attention=QKV, has_biases=True),
        fused=frozenset({"gate_up_proj"}),
    )


FAMILY = Family(
    "glm4",
    "Glm4ForCausalLM",
    describe,
    defaults={"head_dim": 128, "rms_norm_eps": 1.5625e-07, "partial_rotary_factor": 0.5},
    is_compared=True,
    is_left_padded=True,
)
