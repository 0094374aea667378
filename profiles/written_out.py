"""Decides which architectures the written-out layers, their fused operations and captured decode steps compute. (pure)

They are kernels of ours for a GPU, with less in them than the plain decoder and packed rows, which call the model's own
modules. What they refuse, those compute.
"""

from __future__ import annotations

from profiles.architecture import supports as of_own_code
from profiles.description import QKV, ROPE_TYPES, Architecture, Norm


def supports(architecture: Architecture | None) -> str:
    """Why they cannot compute the model; empty if they can. architecture: `within` the sequences of the run, so that
    no window is left that holds them all."""
    if architecture is None or not architecture.is_compared:
        return "it was never compared with its architecture"
    if reason := of_own_code(architecture):
        return reason
    if architecture.biases != QKV:
        return "it needs biases on queries, keys and values, and on no other layer"
    if architecture.window is not None:
        return f"a sliding window of {architecture.window} tokens"
    norm, ropes = architecture.norm, [layer.rope for layer in architecture.layers]
    holds = {
        "layers": all(
            rope == ropes[0] and rope.kind in ROPE_TYPES - {"longrope"} and rope.share == 1.0
            for rope in ropes
            if rope is not None
        )
        and None not in ropes,
        "norm": norm == Norm(eps=norm.eps),
        "qk_norm": not architecture.qk_norm,
        "fused": not architecture.fused,
        "activation": architecture.activation == "silu" and architecture.has_gate,
        "embedding_scale": architecture.embedding_scale == 1.0,
        "residual_scale": architecture.residual_scale == 1.0,
        "layer_scale": not architecture.layer_scale,
        "attention_scale": architecture.attention_scale is None,
        "logit_scale": architecture.logit_scale == 1.0,
        "attention_cap": architecture.attention_cap is None,
        "logit_cap": architecture.logit_cap is None,
    }
    return min((architecture.text_of(name) for name, is_known in holds.items() if not is_known), default="")
