"""Apertus: an MLP without a gate, with an activation of trained slopes, and norms of queries and keys."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import Architecture, NormNames
from profiles.family import Family, Fields, biases_of, usual


def describe(fields: Fields) -> Architecture:
    fields.refuse_unless("qk_norm", True)
    found = usual(fields)
    return replace(
        found,
        norm=replace(found.norm, names=NormNames("attention_layernorm", "", "feedforward_layernorm", "")),
        qk_norm="head",
        biases=biases_of(fields),
        has_gate=False,
    )


FAMILY = Family(
    "apertus",
    "ApertusForCausalLM",
    describe,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "xielu"},
    is_compared=True,
    is_left_padded=True,
)
