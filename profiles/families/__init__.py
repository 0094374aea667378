"""The known model families, one file each, and functions that read a config.json with them. (pure)

To add a family, add a file with a record `FAMILY` to this folder (docs/extending.md). No code outside it compares names
of architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from profiles.description import Architecture
from profiles.family import Family

_MODULES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
FAMILIES: dict[str, Family] = {module.FAMILY.model_type: module.FAMILY for module in _MODULES}
"""By `model_type`."""

_OTHERS = """
    apertus bamba bloom cohere cohere2 deepseek_v3 ernie4_5 exaone4 falcon_h1 falcon_mamba glm glm4 glm4_moe gpt2
    gpt_neox gpt_oss granitemoe granitemoehybrid helium hunyuan_v1_dense jamba lfm2 mamba mamba2 ministral
    ministral3 mixtral nemotron olmo olmoe opt phi phi3 qwen2_moe qwen3_5_text qwen3_moe qwen3_next
    seed_oss smollm3 stablelm starcoder2
"""
LEFT_PADDED = frozenset(_OTHERS.split()) | {name for name, record in FAMILIES.items() if record.is_left_padded}
"""Architectures whose `generate` gives the same result with left padding as without, as measured for each. For any
other, prompts of different lengths never share a batch."""


def name_of(config: Mapping[str, Any]) -> str:
    """The architecture named in a config.json; empty if there is none."""
    return str(config.get("model_type", ""))


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture described by a config.json or by `to_dict()` of transformers' config; None if unknown."""
    family = FAMILIES.get(name_of(config))
    return None if family is None else family.architecture(config)


def with_usual_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sizes under their usual names if the family uses others, and its defaults of what is absent."""
    family = FAMILIES.get(name_of(config))
    if family is None:
        return dict(config)
    return {**family.defaults, **config, **{usual: config[own] for usual, own in family.names.items() if own in config}}


def compared() -> list[str]:
    """Names of the families that our own code can compute."""
    return sorted(record.model_type for record in FAMILIES.values() if record.is_compared)


def is_left_padded(config: Mapping[str, Any]) -> bool:
    """Whether prompts of different lengths may share a batch of transformers' `generate`."""
    record = FAMILIES.get(name_of(config))
    return record.is_left_padded if record else name_of(config) in LEFT_PADDED
