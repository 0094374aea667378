"""OLMo 3: an OLMo 2 in which three of four layers see a window of tokens, with a rotary embedding of their own."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import POST, Architecture, Rope
from profiles.family import Family, Fields, biases_of, every, ropes_of, usual, window_of


def describe(fields: Fields) -> Architecture:
    plain = Rope(theta=fields.get("rope_theta", 500_000.0))
    ropes = ropes_of(fields, {"full_attention": plain, "sliding_attention": plain})
    found = usual(fields, window=window_of(fields), kinds=every(fields, 4), ropes=ropes)
    return replace(found, norm=replace(found.norm, names=POST), qk_norm="whole", biases=biases_of(fields))


FAMILY = Family(
    "olmo3", "Olmo3ForCausalLM", describe, defaults={"rms_norm_eps": 1e-5}, is_compared=True, is_left_padded=True
)
