"""OLMo 2: norms after each part instead of before it, queries and keys normed over all heads together."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import POST, Architecture
from profiles.family import Family, Fields, biases_of, usual


def describe(fields: Fields) -> Architecture:
    found = usual(fields)
    return replace(found, norm=replace(found.norm, names=POST), qk_norm="whole", biases=biases_of(fields))


FAMILY = Family(
    "olmo2", "Olmo2ForCausalLM", describe, defaults={"rms_norm_eps": 1e-5}, is_compared=True, is_left_padded=True
)
