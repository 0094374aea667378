"""ERNIE 4.5 without experts: a Llama that rotates even dimensions with odd ones."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import ATTENTION, MLP, Architecture
from profiles.family import Family, Fields, rope_of, usual


def describe(fields: Fields) -> Architecture:
    biases = ATTENTION | MLP if fields.get("use_bias", False) else frozenset[str]()
    return replace(usual(fields, ropes={"": rope_of(fields, is_interleaved=True)}), biases=biases)


FAMILY = Family(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    describe,
    defaults={"head_dim": 128, "rms_norm_eps": 1e-5},
    is_compared=True,
    is_left_padded=True,
)
