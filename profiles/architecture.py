"""Decides whether our own code computes a model, or plain transformers does. (pure)

Our own code is the engines `native`, `continuous` and `vllm`, the fused and written-out layers, and training on packed
rows. It accepts a model only if it knows the family, every field of the config, and everything that they describe. Any
other model runs through plain transformers: the engine `hf`, and training on rows of one prompt and one completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.description import ROPE_TYPES, Architecture, Norm
from profiles.families import architecture_of, compared, name_of

PLAIN_ENGINE = "hf"


def supports(architecture: Architecture) -> str:
    """Why the decoder and packed rows cannot compute the model, whatever its window; empty if they can.

    Biases do not matter: both call the model's own linear layers.
    """
    norm = architecture.norm
    holds = {
        "layers": all(
            layer.rope is not None and layer.rope.kind in ROPE_TYPES and layer.rope.share == 1.0
            for layer in architecture.layers
        ),
        "norm": norm == Norm(eps=norm.eps),
        "qk_norm": not architecture.qk_norm,
        "activation": architecture.activation == "silu",
        "embedding_scale": architecture.embedding_scale == 1.0,
        "residual_scale": architecture.residual_scale == 1.0,
        "attention_scale": architecture.attention_scale is None,
        "logit_scale": architecture.logit_scale == 1.0,
        "attention_cap": architecture.attention_cap is None,
        "logit_cap": architecture.logit_cap is None,
    }
    wrong = [*architecture.unknown, *(architecture.text_of(name) for name, is_known in holds.items() if not is_known)]
    return min(wrong, default="")


def reason_against(config: Mapping[str, Any], longest: int = 0) -> str:
    """Why our own code must not compute this model; empty if it may. (pure)

    config: a config.json, or `to_dict()` of transformers' config. longest: the longest sequence of this run in tokens,
    0 if unknown. A window of at least this length has no effect.
    """
    found = architecture_of(config)
    if found is None or not found.is_compared:
        return f"the architecture {name_of(config) or '(none named)'} is not one of {', '.join(compared())}"
    if reason := supports(found):
        return f"{found.family} with {reason}"
    if found.window is not None and not 0 < longest <= found.window:
        return f"{found.family} with a sliding window of {found.window} tokens"
    return ""


def refusal(config: Mapping[str, Any], longest: int) -> str:
    """Why no engine can sample sequences of `longest` tokens from this model; empty if one can. (pure)

    `dynamic` and `longrope` rotate all positions differently once a sequence exceeds the original context, but a cache
    keeps the keys as rotated before. Sampling beyond that length would differ from a pass over the whole sequence.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping) or (kind := rope.get("rope_type", rope.get("type"))) not in (
        "dynamic",
        "longrope",
    ):
        return ""
    first = (
        rope.get("original_max_position_embeddings")
        or config.get("original_max_position_embeddings")
        or config.get("max_position_embeddings")
        or 0
    )
    if longest <= int(first):
        return ""
    return f"its rotary embedding ({kind}) changes beyond {first} tokens, and a sequence may have {longest}"


def path_of(config: Mapping[str, Any], engine: str, longest: int = 0) -> str:
    """One line about the engine for rollouts and how the model is trained. (pure)"""
    if reason := reason_against(config, longest):
        rows = "training on rows of one prompt and one completion"
        return f"plain transformers ({reason}): rollouts by {PLAIN_ENGINE}, {rows}"
    return f"own code ({name_of(config)}): rollouts by {engine}, training on packed rows"
