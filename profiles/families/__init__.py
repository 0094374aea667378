"""The families of models that are known, a file each; and what is read from a config.json with them. (pure)

A new family is a new file in this folder, with its record `FAMILY`: docs/extending.md. Nothing outside of it compares
names of architectures.
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
    ministral3 mixtral nemotron olmo olmo2 olmo3 olmoe opt phi phi3 qwen2_moe qwen3_5_text qwen3_moe qwen3_next
    seed_oss smollm3 stablelm starcoder2
"""
LEFT_PADDED = frozenset(_OTHERS.split()) | {name for name, record in FAMILIES.items() if record.is_left_padded}
"""Architectures whose `generate` gives a prompt with padding on its left what it gives the prompt alone: measured for
each, also for those without a record. Of any other, prompts of unlike lengths never share a batch."""


def name_of(config: Mapping[str, Any]) -> str:
    """What a config.json calls its architecture; empty: nothing."""
    return str(config.get("model_type", ""))


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """What a config.json, or `to_dict()` of transformers' config, describes; None: its family is not known."""
    family = FAMILIES.get(name_of(config))
    return None if family is None else family.architecture(config)


def with_usual_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the sizes under their usual names, whatever its family calls them."""
    family = FAMILIES.get(name_of(config))
    names = family.names if family else {}
    return {**config, **{usual: config[own] for usual, own in names.items() if own in config}}


def compared() -> list[str]:
    """Names of the families that our own code may compute."""
    return sorted(record.model_type for record in FAMILIES.values() if record.is_compared)


def is_left_padded(config: Mapping[str, Any]) -> bool:
    """Whether prompts of unlike lengths may share a batch of transformers' `generate`."""
    record = FAMILIES.get(name_of(config))
    return record.is_left_padded if record else name_of(config) in LEFT_PADDED
