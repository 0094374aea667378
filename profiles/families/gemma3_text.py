"""Gemma 3 without images: like Gemma 2, with norms of queries and keys, and two rotary embeddings."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import SANDWICH, Architecture, Rope
from profiles.family import Family, Fields, biases_of, every, ropes_of, usual, window_of


def describe(fields: Fields) -> Architecture:
    # transformers' code reads `attn_logit_softcapping`, and caps nothing.
    fields.refuse_unless_off("use_bidirectional_attention", "attn_logit_softcapping")
    fields.get("_sliding_window_pattern")  # as transformers writes it, beside `layer_types`
    ropes = {
        "full_attention": Rope(theta=fields.get("rope_theta", 1_000_000.0)),
        "sliding_attention": Rope(theta=fields.get("rope_local_base_freq", 10_000.0)),
    }
    fields.get("hidden_act")  # not read by transformers
    found = usual(
        fields,
        window=window_of(fields),
        kinds=every(fields, fields.get("sliding_window_pattern", 6)),
        activation="hidden_activation",
        ropes=ropes_of(fields, ropes),
    )
    return replace(
        found,
        norm=replace(found.norm, plus_one=True, names=SANDWICH),
        qk_norm="head",
        biases=biases_of(fields),
        embedding_scale=fields.get("hidden_size", 2304) ** 0.5,
        embedding_is_scaled=True,
        attention_scale=fields.get("query_pre_attn_scalar", 256, fills="attention_scale") ** -0.5,
        logit_cap=fields.get("final_logit_softcapping", fills="logit_cap"),
    )


FAMILY = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    describe,
    defaults={"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh"},
    is_compared=True,
    is_left_padded=True,
)
