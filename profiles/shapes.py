"""Shapes of models: the sizes that a config.json names, and how many parameters follow from them. (pure)

Only what Qwen2 and its like have: grouped queries, gated MLP, RMSNorm, biases on queries, keys and values alone. What
else a config.json describes stands in `profiles/description.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from profiles import capture
from profiles.architecture import reason_against
from profiles.families import architecture_of, with_usual_names

QWEN2 = {"model_type": "qwen2"}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2-tiny": {
        **QWEN2,
        "vocab_size": 272,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32_768,
    },
    "qwen2.5-0.5b": {
        **QWEN2,
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
    },
    "qwen2.5-1.5b": {
        **QWEN2,
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
    },
    "r1-qwen-1.5b": {
        **QWEN2,
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
    },
    "qwen2.5-3b": {
        **QWEN2,
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
    },
}
"""Keys of config.json as published; Qwen2.5 and Qwen2.5-Coder of a size are alike. Embedding and head are one matrix
unless said otherwise."""

PUBLISHED = {
    "qwen2.5-0.5b": "qwen2.5-0.5b",
    "qwen2.5-coder-0.5b": "qwen2.5-0.5b",
    "qwen2.5-1.5b": "qwen2.5-1.5b",
    "qwen2.5-coder-1.5b": "qwen2.5-1.5b",
    "qwen2.5-math-1.5b": "qwen2.5-1.5b",
    "deepseek-r1-distill-qwen-1.5b": "r1-qwen-1.5b",
    "qwen2.5-3b": "qwen2.5-3b",
    "qwen2.5-coder-3b": "qwen2.5-3b",
}
"""Names of published models, in lower case and without `-instruct`: what a folder that is not there yet would hold."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; the names are those of config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    is_captured: bool = True
    """Of an architecture whose decode steps the engine `native` captures, without a sliding window."""

    @property
    def query_width(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of keys, and of values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each linear layer of a block."""
        h, f, q, k = self.hidden_size, self.intermediate_size, self.query_width, self.key_width
        return {
            "q_proj": (h, q),
            "k_proj": (h, k),
            "v_proj": (h, k),
            "o_proj": (q, h),
            "gate_proj": (h, f),
            "up_proj": (h, f),
            "down_proj": (f, h),
        }

    @property
    def linear_parameters(self) -> int:
        """Weights of the linear layers of all blocks: what quantisation makes smaller."""
        return self.num_hidden_layers * sum(inputs * outputs for inputs, outputs in self.linear.values())

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, and of the output head where that is a matrix of its own."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def small_parameters(self) -> int:
        """Norms, and biases of queries, keys and values."""
        biases = self.num_hidden_layers * (self.query_width + 2 * self.key_width)
        return biases + (2 * self.num_hidden_layers + 1) * self.hidden_size

    @property
    def parameters(self) -> int:
        return self.linear_parameters + self.embedding_parameters + self.small_parameters

    def adapter_parameters(self, rank: int, targets: Collection[str]) -> int:
        """Of LoRA adapters of `rank` in the linear layers that `targets` names."""
        widths = sum(sum(pair) for name, pair in self.linear.items() if name in targets)
        return self.num_hidden_layers * rank * widths


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape that a config.json describes. Raises KeyError where a size is missing."""
    is_captured = not reason_against(config) and not capture.supports(architecture_of(config))
    config = with_usual_names(config)
    heads = config["num_attention_heads"]
    return Shape(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", True)),
        is_captured=is_captured,
    )


def published(name: str) -> Shape | None:
    """The shape of a published model, by its name or that of a folder which is named after it; None: not known."""
    plain = name.lower().removesuffix("-instruct")
    return shape_of(ARCHITECTURES[PUBLISHED[plain]]) if plain in PUBLISHED else None
