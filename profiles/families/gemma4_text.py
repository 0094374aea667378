"""Gemma 4's dense text models: like Gemma 3, with a norm of values and a scale of each layer.

Full layers have wider heads, of which a share is rotated, and may take their values from their keys. Not described: the
embeddings of each layer, caches that layers share, and the mixture of experts. With any of them, plain transformers
computes the model.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.description import SANDWICH, Architecture, Layer, Rope
from profiles.family import Family, Fields, biases_of, every, ropes_of, usual


def describe(fields: Fields) -> Architecture:
    if fields.get("use_bidirectional_attention") == "all":  # "vision" leaves text causal
        fields.refuse("use_bidirectional_attention")
    fields.refuse_unless_off(
        "num_kv_shared_layers",
        "enable_moe_block",
        "use_double_wide_mlp",
        "hidden_size_per_layer_input",
    )
    for name in ("vocab_size_per_layer_input", "num_experts", "top_k_experts", "moe_intermediate_size"):
        fields.get(name)  # of parts that are off
    plain = {"full_attention": Rope("proportional", 1_000_000.0, 0.25), "sliding_attention": Rope()}
    kinds = [*every(fields, 6)[:-1], "full_attention"]
    ropes = ropes_of(fields, plain)
    found = usual(
        fields, window=fields.get("sliding_window", 512), kinds=kinds, activation="hidden_activation", ropes=ropes
    )
    are_keys = bool(fields.get("attention_k_eq_v", False))
    wide = {str(number): value for number, value in (fields.get("per_layer_config") or {}).items()}
    usual_wide: dict[str, int] = {"head_dim": fields.get("global_head_dim", 512)}
    if are_keys and (heads := fields.get("num_global_key_value_heads")):
        usual_wide["num_key_value_heads"] = heads

    def of(number: int, layer: Layer) -> Layer:
        if layer.rope_name != "full_attention":
            return layer
        sizes = wide.get(str(number), {}) if wide else usual_wide
        return replace(
            layer,
            head_dim=sizes.get("head_dim"),
            key_heads=sizes.get("num_key_value_heads"),
            values_are_keys=are_keys,
        )

    return replace(
        found,
        layers=tuple(of(number, layer) for number, layer in enumerate(found.layers)),
        norm=replace(found.norm, names=SANDWICH),
        qk_norm="head",
        v_norm=True,
        layer_scale=True,
        biases=biases_of(fields),
        embedding_scale=fields.get("hidden_size", 2304) ** 0.5,
        embedding_is_scaled=True,
        attention_scale=1.0,
        logit_cap=fields.get("final_logit_softcapping", fills="logit_cap"),
    )


FAMILY = Family(
    "gemma4_text",
    "Gemma4ForCausalLM",
    describe,
    defaults={"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 256},
    is_compared=True,
    is_left_padded=True,
)
