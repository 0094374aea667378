"""Arcee: a Llama with an MLP without a gate, whose activation is the square of ReLU."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import Architecture
from profiles.family import Family, Fields, biases_of, usual


def describe(fields: Fields) -> Architecture:
    return replace(usual(fields), biases=biases_of(fields) - {"gate_proj"}, has_gate=False)


FAMILY = Family(
    "arcee",
    "ArceeForCausalLM",
    describe,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2"},
    is_compared=True,
    is_left_padded=True,
)
