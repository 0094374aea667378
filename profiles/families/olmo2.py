"""OLMo 2: norms after each part instead of before it, queries and keys normed over all heads together."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import ATTENTION, Architecture
from profiles.family import Family, Fields, usual


def describe(fields: Fields) -> Architecture:
    found = usual(fields)
    return replace(
        found,
        norm=replace(found.norm, before=False, after=True),
        qk_norm=True,
        qk_norm_is_whole=True,
        biases=ATTENTION if fields.get("attention_bias", False) else frozenset[str](),
    )


FAMILY = Family("olmo2", "Olmo2ForCausalLM", describe, is_left_padded=True)
