"""SmolLM3: a Llama that encodes no positions in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import Architecture
from profiles.family import Family, Fields, biases_of, count_of, usual


def describe(fields: Fields) -> Architecture:
    window = fields.get("sliding_window")
    does_slide = bool(window and fields.get("use_sliding_window", False))
    interval, count = fields.get("no_rope_layer_interval", 4), count_of(fields)
    is_rotated = fields.get("no_rope_layers", fills="layers") or [(number + 1) % interval for number in range(count)]
    kinds = ["full_attention" if one or not does_slide else "sliding_attention" for one in is_rotated]
    found = usual(fields, window=window, kinds=kinds)
    layers = tuple(
        layer if one else replace(layer, rope=None) for layer, one in zip(found.layers, is_rotated, strict=True)
    )
    return replace(found, layers=layers, biases=biases_of(fields))


FAMILY = Family("smollm3", "SmolLM3ForCausalLM", describe, is_compared=True, is_left_padded=True)
