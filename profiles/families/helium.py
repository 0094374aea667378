"""Helium: a Llama that rotates even dimensions with odd ones."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import QKV, Architecture
from profiles.family import Family, Fields, biases_of, rope_of, usual


def describe(fields: Fields) -> Architecture:
    biases = biases_of(fields, attention=QKV)
    return replace(usual(fields, ropes={"": rope_of(fields, is_interleaved=True)}), biases=biases)


FAMILY = Family(
    "helium",
    "HeliumForCausalLM",
    describe,
    defaults={"head_dim": 128, "rms_norm_eps": 1e-8},
    is_compared=True,
    is_left_padded=True,
)
