"""Seed-OSS: a Llama with biases where its config says."""

from __future__ import annotations

from dataclasses import replace

from profiles.description import QKV, Architecture
from profiles.family import Family, Fields, biases_of, usual


def describe(fields: Fields) -> Architecture:
    biases = biases_of(fields, attention=QKV, has_biases=True)
    return replace(usual(fields), biases=biases | {"o_proj"} if fields.get("attention_out_bias", False) else biases)


FAMILY = Family(
    "seed_oss", "SeedOssForCausalLM", describe, defaults={"head_dim": 128}, is_compared=True, is_left_padded=True
)
