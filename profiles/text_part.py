"""The language model within a checkpoint that also reads images or sound. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = "text_config"


def is_composite(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a language model with other parts around it."""
    return isinstance(config.get(KEY), Mapping)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the language model: all of it, unless there are other parts.

    Fields that files leave out keep out: they have transformers' defaults.
    """
    if not is_composite(config):
        return config
    shared = {name: config[name] for name in ("tie_word_embeddings", "quantization_config") if name in config}
    return {**config[KEY], **shared}
