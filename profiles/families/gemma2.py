"""Gemma 2: norms before and after each part, windows in every other layer, soft caps."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import SANDWICH, Architecture
from profiles.family import Family, Fields, biases_of, every, usual, window_of


def describe(fields: Fields) -> Architecture:
    fields.refuse_unless_off("use_bidirectional_attention")
    fields.get("hidden_act")  # not read by transformers
    found = usual(fields, window=window_of(fields), kinds=every(fields, 2), activation="hidden_activation")
    return replace(
        found,
        norm=replace(found.norm, plus_one=True, names=SANDWICH),
        biases=biases_of(fields),
        embedding_scale=fields.get("hidden_size", 2304) ** 0.5,
        embedding_is_scaled=True,
        attention_scale=fields.get("query_pre_attn_scalar", 256, fills="attention_scale") ** -0.5,
        attention_cap=fields.get("attn_logit_softcapping", 50.0, fills="attention_cap"),
        logit_cap=fields.get("final_logit_softcapping", 30.0, fills="logit_cap"),
    )


FAMILY = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    describe,
    defaults={"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh"},
    is_compared=True,
    is_left_padded=True,
)
