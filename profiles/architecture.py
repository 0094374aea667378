"""Decides whether our own code computes a model, or plain transformers does. (pure)

Our own code is the engines `native`, `continuous` and `vllm`, the fused and written-out layers, and training on packed
rows. It accepts a model only if it knows the family, every field of the config, and everything that they describe. Any
other model runs through plain transformers: the engine `hf`, and training on rows of one prompt and one completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.description import ROPE_TYPES, Architecture
from profiles.families import architecture_of, compared, name_of

PLAIN_ENGINE = "hf"


ACTIVATIONS = frozenset({"silu", "gelu_pytorch_tanh", "relu2", "xielu"})


def supports(architecture: Architecture) -> str:
    """Why the decoder and packed rows cannot compute the model; empty if they can.

    Both call the model's own linear layers, norms and activation, so biases, fused layers and kinds of scale do not
    matter. Captured steps and written-out layers have `profiles.written_out.supports`.
    """
    holds = {
        "layers": all(layer.rope is None or layer.rope.kind in ROPE_TYPES for layer in architecture.layers),
        "activation": architecture.activation in ACTIVATIONS,
    }
    wrong = [*architecture.unknown, *(architecture.text_of(name) for name, is_known in holds.items() if not is_known)]
    return min(wrong, default="")


def reason_against(config: Mapping[str, Any]) -> str:
    """Why our own code must not compute this model; empty if it may. (pure)

    config: a config.json, or `to_dict()` of transformers' config.
    """
    found = architecture_of(config)
    if found is None or not found.is_compared:
        return f"the architecture {name_of(config) or '(none named)'} is not one of {', '.join(compared())}"
    if reason := supports(found):
        return f"{found.family} with {reason}"
    return ""


CHOICES = ("index_topk", "indexer_budget", "keep_window_size")
"""Fields with the number of tokens that a layer attends to, where it chooses them by a score."""


def refusal(config: Mapping[str, Any], longest: int) -> str:
    """Why no engine can sample sequences of `longest` tokens from this model; empty if one can. (pure)

    `dynamic` and `longrope` rotate all positions differently once a sequence exceeds the original context, but a cache
    keeps the keys as rotated before. Sampling beyond that length would differ from a pass over the whole sequence. So
    it would where layers choose tokens by a score: the least rounding makes them choose others.
    """
    for name in CHOICES:
        if isinstance(chosen := config.get(name), int) and 0 < chosen < longest:
            return f"its attention chooses {chosen} tokens ({name}), and a sequence may have {longest}"
    found = config.get("rope_parameters") or config.get("rope_scaling")
    ropes = [found, *found.values()] if isinstance(found, Mapping) else []  # one, or one for each kind of layer
    for rope in ropes:
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else ""
        if kind not in ("dynamic", "longrope"):
            continue
        first = (
            rope.get("original_max_position_embeddings")
            or config.get("original_max_position_embeddings")
            or config.get("max_position_embeddings")
            or 0
        )
        if longest > int(first):
            return f"its rotary embedding ({kind}) changes beyond {first} tokens, and a sequence may have {longest}"
    return ""


def path_of(config: Mapping[str, Any], engine: str, reason: str = "") -> str:
    """One line about the engine for rollouts and how the model is trained. reason: why our own code may not compute it
    on the processor at hand. (pure)"""
    if reason := reason or reason_against(config):
        rows = "training on rows of one prompt and one completion"
        return f"plain transformers ({reason}): rollouts by {PLAIN_ENGINE}, {rows}"
    return f"own code ({name_of(config)}): rollouts by {engine}, training on packed rows"
