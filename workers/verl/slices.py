"""Which part of a weight each rank of a tensor-parallel rollout engine holds, and under which name. (pure)

The table is ours and does not use the engine's loader, so a fault of that loader shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

VOCABULARY_MULTIPLE = 64
"""vLLM pads the vocabulary to a multiple of this before it divides it."""
COLUMNS = ("gate_proj", "up_proj", "q_proj")
"""Layers whose outputs are divided: rows of the weight."""
ROWS = ("o_proj", "down_proj")
"""Layers whose inputs are divided: columns of the weight; each rank has the whole bias."""
KEYS = ("k_proj", "v_proj")
"""As COLUMNS, but repeated where there are fewer heads than ranks."""
VOCABULARY = ("embed_tokens", "lm_head")
WHOLE = ("input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm")

Sliceable = TypeVar("Sliceable", bound=Any)


class UnknownLayout(ValueError):
    """No table says how an engine holds this weight."""


@dataclass(frozen=True)
class Part:
    """Indices [start, stop) of dimension `dim`; the other dimensions are whole."""

    dim: int
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """A dense decoder like Llama's on `ranks` ranks."""

    heads: int
    kv_heads: int
    ranks: int = 1
    is_tied: bool = False
    """Whether the output head is the embedding; the engine then holds one of them."""

    @staticmethod
    def of(config: Mapping[str, Any], ranks: int) -> Layout:
        """config: the model's config.json. Raises UnknownLayout for a model with experts, or divided unevenly."""
        if any("expert" in name and value for name, value in config.items()):
            raise UnknownLayout("a model with experts")
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
            raise UnknownLayout(f"{heads} heads and {kv_heads} heads of keys on {ranks} ranks")
        return Layout(heads, kv_heads, ranks, bool(config.get("tie_word_embeddings")))

    def part(self, name: str, shape: tuple[int, ...], rank: int) -> Part:
        """Of the weight that Hugging Face calls `name`. Raises UnknownLayout."""
        layer, kind = name.split(".")[-2:]
        if layer in COLUMNS:
            return self._divided(0, shape, rank, self.ranks)
        if layer in KEYS:
            copies = max(1, self.ranks // self.kv_heads)
            return self._divided(0, shape, rank // copies, self.ranks // copies)
        if layer in ROWS and kind == "weight":
            return self._divided(1, shape, rank, self.ranks)
        if layer in VOCABULARY:
            padded = -(-shape[0] // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
            share = padded // self.ranks
            return Part(0, min(shape[0], rank * share), min(shape[0], (rank + 1) * share))
        if layer in WHOLE or (layer in ROWS and kind == "bias"):
            return Part(0, 0, shape[0])
        raise UnknownLayout(name)

    @staticmethod
    def _divided(dim: int, shape: tuple[int, ...], rank: int, ranks: int) -> Part:
        if shape[dim] % ranks:
            raise UnknownLayout(f"{shape} on {ranks} ranks")
        share = shape[dim] // ranks
        return Part(dim, rank * share, (rank + 1) * share)

    def unfused(self, name: str, held: Sliceable, vocabulary: int, rank: int) -> Iterator[tuple[str, Sliceable]]:
        """What a rank holds under `name`, by the names of Hugging Face and without padding.

        held: a tensor of the engine. vocabulary: rows of the embedding without padding.
        """
        parts = name.split(".")
        layer = parts[-2]
        if layer == "qkv_proj":
            queries = self.heads // self.ranks
            keys = max(1, self.kv_heads // self.ranks)
            head = held.shape[0] // (queries + 2 * keys)
            sizes = {"q_proj": queries * head, "k_proj": keys * head, "v_proj": keys * head}
        elif layer == "gate_up_proj":
            sizes = dict.fromkeys(("gate_proj", "up_proj"), held.shape[0] // 2)
        elif layer in VOCABULARY:
            part = self.part(name, (vocabulary,), rank)
            sizes = {layer: part.stop - part.start}
        else:
            sizes = {layer: held.shape[0]}
        begin = 0
        for single, size in sizes.items():
            yield ".".join([*parts[:-2], single, parts[-1]]), held[begin : begin + size]
            begin += size
