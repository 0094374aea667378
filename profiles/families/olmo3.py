"""OLMo 3: an OLMo 2 in which three of four layers see a window of tokens."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import ATTENTION, Architecture
from profiles.family import Family, Fields, usual, window_of


def describe(fields: Fields) -> Architecture:
    found = usual(fields, window=window_of(fields), has_ropes=True)
    return replace(
        found,
        norm=replace(found.norm, before=False, after=True),
        qk_norm=True,
        qk_norm_is_whole=True,
        biases=ATTENTION if fields.get("attention_bias", False) else frozenset[str](),
    )


FAMILY = Family("olmo3", "Olmo3ForCausalLM", describe, is_left_padded=True)
