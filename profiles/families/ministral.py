"""Ministral: a Mistral whose layers may differ in their window."""

from __future__ import annotations

from profiles.description import Architecture
from profiles.family import Family, Fields, usual, window_of


def describe(fields: Fields) -> Architecture:
    return usual(fields, window=window_of(fields))


FAMILY = Family("ministral", "MinistralForCausalLM", describe, is_compared=True, is_left_padded=True)
