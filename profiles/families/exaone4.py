"""EXAONE 4: norms after each part and of queries and keys; where layers slide, full ones encode no positions."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import POST, Architecture
from profiles.family import Family, Fields, every, usual, window_of


def describe(fields: Fields) -> Architecture:
    window = window_of(fields)
    pattern = fields.get("sliding_window_pattern", 4)
    found = usual(fields, window=window, kinds=every(fields, pattern if isinstance(pattern, int) else 4))
    layers = found.layers
    if window is not None:
        layers = tuple(replace(layer, rope=layer.rope if layer.window else None) for layer in layers)
        fields.remember("layers", "sliding_window")
    return replace(found, layers=layers, norm=replace(found.norm, names=POST), qk_norm="head")


FAMILY = Family(
    "exaone4", "Exaone4ForCausalLM", describe, defaults={"rms_norm_eps": 1e-5}, is_compared=True, is_left_padded=True
)
