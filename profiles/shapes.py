"""Shapes of models: the sizes in a config.json, and the parameter counts that follow from them. (pure)

Decoders with grouped queries, MLP and RMSNorm; which layers there are, which have a bias and where norms stand, the
family's record says. Of a family without a record they are taken to be those of Qwen2. What else a config.json
describes stands in `profiles/description.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from profiles import capture
from profiles.architecture import reason_against
from profiles.description import QKV, Architecture, Layer
from profiles.families import architecture_of, with_usual_names
from profiles.named_shapes import ARCHITECTURES as ARCHITECTURES
from profiles.named_shapes import CLUSTER_ARCHITECTURES as CLUSTER_ARCHITECTURES
from profiles.named_shapes import PUBLISHED as PUBLISHED
from profiles.targets import own_targets

OF_QWEN2 = Architecture(biases=QKV)


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, named as in config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    is_captured: bool = True
    """Whether the engine `native` can capture decode steps of this model."""
    is_own: bool = True
    """Whether our own code computes it, so that the names of its linear layers are known."""
    architecture: Architecture = OF_QWEN2
    """What its blocks consist of."""
    is_counted: bool = True
    """Its family has a record, so that its parameters are counted exactly; else they are those of a Qwen2."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        found = self.architecture.layers
        return found if len(found) == self.num_hidden_layers else found[:1] * self.num_hidden_layers

    @property
    def query_width(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of keys, and of values; of the widest layer."""
        return max(map(self.key_width_of, self.layers), default=0)

    @property
    def head_dims(self) -> list[int]:
        """Widths of the heads of all layers."""
        return sorted({layer.head_dim or self.head_dim for layer in self.layers} or {self.head_dim})

    def key_width_of(self, layer: Layer) -> int:
        return (layer.key_heads or self.num_key_value_heads) * (layer.head_dim or self.head_dim)

    @property
    def cache_width(self) -> int:
        """Width of the keys that all layers cache for a token, and of the values."""
        return sum(map(self.key_width_of, self.layers))

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each linear layer of a block; of the largest, where blocks differ."""
        blocks = [self.linear_of(layer) for layer in dict.fromkeys(map(_sizes, self.layers))]
        names = dict.fromkeys(name for block in blocks for name in block)
        return {name: max((block[name] for block in blocks if name in block), key=math.prod) for name in names}

    def linear_of(self, layer: Layer) -> dict[str, tuple[int, int]]:
        h, f, k = self.hidden_size, self.intermediate_size, self.key_width_of(layer)
        q = self.num_attention_heads * (layer.head_dim or self.head_dim)
        sizes = {
            "qkv_proj": (h, q + 2 * k),
            "q_proj": (h, q),
            "k_proj": (h, k),
            "v_proj": (h, k),
            "o_proj": (q, h),
            "gate_up_proj": (h, 2 * f),
            "gate_proj": (h, f),
            "up_proj": (h, f),
            "down_proj": (f, h),
        }
        missing = {"v_proj"} if layer.values_are_keys else set()
        return {name: sizes[name] for name in self.architecture.linear_names if name not in missing}

    @property
    def linear_parameters(self) -> int:
        """Weights of the linear layers of all blocks, which quantisation shrinks."""
        return sum(math.prod(pair) for layer in self.layers for pair in self.linear_of(layer).values())

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding, and of the output head unless it is tied."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def small_parameters(self) -> int:
        """Norms, biases, and slopes of the activation."""
        return sum(map(self._small_of, self.layers)) + self.hidden_size

    def _small_of(self, layer: Layer) -> int:
        one, linear, width = self.architecture, self.linear_of(layer), layer.head_dim or self.head_dim
        whole = self.num_attention_heads * width + self.key_width_of(layer)
        return (
            sum(linear[name][1] for name in one.biases if name in linear)
            + 2 * (one.norm.before + one.norm.after) * self.hidden_size
            + {"": 0, "head": 2 * width, "whole": whole}[one.qk_norm]
            + 2 * (one.activation == "xielu")
        )

    @property
    def parameters(self) -> int:
        return self.linear_parameters + self.embedding_parameters + self.small_parameters

    def adapter_parameters(self, rank: int, targets: Collection[str]) -> int:
        """Weights of LoRA adapters of `rank` in the linear layers `targets`."""
        named = own_targets(self.architecture, targets)
        blocks = [self.linear_of(layer) for layer in self.layers]
        return rank * sum(sum(pair) for block in blocks for name, pair in block.items() if name in named)


def _sizes(layer: Layer) -> Layer:
    """What of a layer sets its sizes, which a dictionary can hold."""
    return Layer(None, None, "", layer.head_dim, layer.key_heads, layer.values_are_keys)


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape that a config.json describes. Raises KeyError if a size is missing."""
    architecture = architecture_of(config)
    is_own = not reason_against(config)
    config = with_usual_names(config)
    heads = config["num_attention_heads"]
    plain = Shape(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", True)),
        is_captured=is_own and not capture.supports(architecture),
        is_own=is_own,
    )
    return replace(plain, is_counted=False) if architecture is None else replace(plain, architecture=architecture)


def published(name: str) -> Shape | None:
    """The shape of a published model, by its name or that of its folder; None if unknown."""
    plain = name.lower().removesuffix("-instruct")
    return shape_of((ARCHITECTURES | CLUSTER_ARCHITECTURES)[PUBLISHED[plain]]) if plain in PUBLISHED else None
