"""Which models our own code is known to compute, and what computes the others. (pure)

Our own code is the engines `native`, `continuous` and `vllm`, the fused and written-out layers, and training on packed
rows. It takes a model only where the family, every field of its config and every part that they describe are known.
Everything else runs through plain transformers: the engine `hf`, and training rows of one prompt and one completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.description import ROPE_TYPES, Architecture, Norm
from profiles.families import architecture_of, compared, name_of

PLAIN_ENGINE = "hf"


def supports(architecture: Architecture) -> str:
    """Why the decoder and packed rows do not compute it at any window; empty: they do. They call its linear layers, so
    biases are theirs."""
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
    """Why our own code is not known to compute this model; empty: it is. (pure)

    config: a config.json, or `to_dict()` of what transformers reads from it. longest: most tokens of a sequence in this
    run, 0 where that is not known; a window of so many tokens or more cuts nothing off.
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
    """Why nothing here can sample sequences of `longest` tokens from this model; empty: something can. (pure)

    Such a rope turns all positions otherwise once a sequence has outgrown its first context. A cache keeps the keys as
    they were turned before, so what is sampled across that border is not what a pass over the whole sequence says.
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
    """One line: what draws rollouts of this model, and how it is trained. (pure)"""
    if reason := reason_against(config, longest):
        rows = "training on rows of one prompt and one completion"
        return f"plain transformers ({reason}): rollouts by {PLAIN_ENGINE}, {rows}"
    return f"own code ({name_of(config)}): rollouts by {engine}, training on packed rows"
