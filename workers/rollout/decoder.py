"""A model's layers around our own attention. Engines with their own cache read prompts through it.

`profiles.architecture.supports` lists the supported models. Weights are never copied, so the next rollout sees an
optimiser step at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from profiles.description import Layer, Rope
from profiles.shapes import shape_of
from workers.models.attention import has_kernels, masked
from workers.models.fused_layers import normed, rotate, stream_of
from workers.models.head import logits_of
from workers.models.plain import described, reason_of
from workers.rollout.engine import EngineUnavailable

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(number of the layer, query, key, value), each tensor [B, its heads, T, head_dim] -> [B, heads, T, head_dim]"""
READ_BYTES = 512 << 20
"""Approximate activations of one pass over prompts. Reading all prompts at once would take more than their cache."""


class Decoder:
    """Runs models with or without adapters in their linear layers."""

    def __init__(self, model: Any) -> None:
        """Raises EngineUnavailable for a model that it cannot run."""
        if reason := reason_of(model):
            raise EngineUnavailable(f"the native engine does not know this model ({reason}); use the hf engine")
        self.model = model
        self._shape = shape_of(model.config.to_dict())
        architecture = described(model)
        assert architecture is not None
        self.architecture = architecture
        """Without windows that hold every sequence of the run."""
        self.layers = architecture.layers
        self.key_heads, self.head_dim = self._shape.num_key_value_heads, self._shape.head_dim
        """Of layers that have no others."""
        self.group = self._shape.num_attention_heads // self.key_heads
        self.rope = torch.empty(2, 0, self.head_dim)
        """The table of the first layer that has one: cosines and sines, [2, T, rotated width]."""
        self._tables: dict[str, Tensor] = {}
        """The same by `rope_name`, in the dtype that transformers rotates in."""

    @property
    def ropes(self) -> Mapping[str, Tensor]:
        """Tables of cosines and sines, [2, T, rotated width], by the layers' `rope_name`."""
        return self._tables

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.model.model.embed_tokens.weight.dtype
        return found

    def cache_shape(self, layer: Layer) -> tuple[int, int]:
        """Heads and width of the keys, and of the values, that a layer caches."""
        return layer.key_heads or self.key_heads, layer.head_dim or self.head_dim

    @property
    def has_cap(self) -> bool:
        return self.architecture.attention_cap is not None

    @property
    def has_attention_kernels(self) -> bool:
        """Whether our own kernels compute the attention of every layer on the model's GPU."""
        return all(has_kernels(self.model.device, width) for width in self._shape.head_dims)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(cap(scale * q k^T) under the mask) v, where query heads share key heads. query: [B, heads, T, D]."""
        one = self.architecture
        return masked(query, key, value, mask, scale=one.attention_scale, cap=one.attention_cap)

    def masks(self, mask: Tensor, queries: Tensor, keys: Tensor) -> dict[int | None, Tensor]:
        """The bool mask [..., T, K] for layers with each window. queries: [T], keys: [K], columns of a row in order."""
        near = queries[:, None] - keys
        windows = {layer.window for layer in self.layers}
        return {window: mask if window is None else mask & (near < window) for window in windows}

    @torch.inference_mode()
    def grow_rope(self, length: int) -> bool:
        """Extend the tables of rotary cosines and sines to `length` positions. True if they grew."""
        ropes = {layer.rope_name: layer.rope for layer in reversed(self.layers) if layer.rope is not None}
        if not ropes or self.rope.shape[1] >= length:
            return False
        self._tables = {name: self._table(name, rope, length) for name, rope in ropes.items()}
        self.rope = next(reversed(self._tables.values())).to(self.dtype)
        return True

    def _table(self, name: str, rope: Rope, length: int) -> Tensor:
        rotary, like = self.model.model.rotary_emb, next(self.model.parameters())
        # `longrope` has other angles for sequences beyond its original context, which no engine draws.
        first = int(rope.scaling.get("original_max_position_embeddings", length)) if rope.kind == "longrope" else length
        positions = torch.arange(length, device=self.model.device)[None]
        read = [positions[:, :first], positions[:, first:]] if first < length else [positions]
        parts = [torch.stack(rotary(like, part, *([name] if name else []))) for part in read]
        return torch.cat(parts, dim=2)[:, 0].contiguous()

    def readable_tokens(self) -> int:
        """Tokens of one pass over prompts."""
        return max(1, self.tokens_within(READ_BYTES))

    def tokens_within(self, size: int) -> int:
        """Tokens whose activations in one layer are about `size` bytes."""
        a_token = self.dtype.itemsize * (4 * self._shape.intermediate_size + 6 * self._shape.hidden_size)
        return size // a_token

    def run_layers(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The model's own modules around `attend`. ids: [B, T]; positions: [B or 1, T]; returns [B, T, hidden]."""
        decoder, described = self.model.model, self.architecture
        names, scale = described.norm.names, described.residual_scale
        angles = {name: table[:, positions][:, :, None] for name, table in self._tables.items()}  # [2, B, 1, T, D]
        hidden = decoder.embed_tokens(ids)
        if described.embedding_scale != 1.0 and not described.embedding_is_scaled:
            hidden = hidden * described.embedding_scale
        hidden = hidden.to(stream_of(self.model))

        def added(out: Tensor, layer: Any, norm: str) -> Tensor:
            out = getattr(layer, norm)(out) if norm else out
            total: Tensor = hidden + (out if scale == 1.0 else out * scale)
            return total

        for number, (layer, one) in enumerate(zip(decoder.layers, self.layers, strict=True)):
            x = normed(getattr(layer, names.before_attention), hidden) if names.before_attention else hidden
            query, key, value = self._qkv(layer.self_attn, one, x, angles, positions)
            mixed = attend(number, query, key, value).transpose(1, 2).flatten(2)  # [B, T, heads * head_dim]
            hidden = added(layer.self_attn.o_proj(mixed), layer, names.after_attention)
            x = normed(getattr(layer, names.before_mlp), hidden) if names.before_mlp else hidden
            hidden = added(layer.mlp(x), layer, names.after_mlp)
            if described.layer_scale:
                hidden = hidden * layer.layer_scalar
        last: Tensor = normed(decoder.norm, hidden)
        return last

    def _qkv(
        self, attention: Any, layer: Layer, x: Tensor, angles: dict[str, Tensor], positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, their heads, T, head_dim]; the first two are normed and rotated."""
        described = self.architecture
        key_heads, width = self.cache_shape(layer)
        if "qkv_proj" in described.fused:
            of_keys = key_heads * width
            query, key, value = attention.qkv_proj(x).split(
                [self._shape.num_attention_heads * width, of_keys, of_keys], dim=-1
            )
        else:
            query, key = attention.q_proj(x), attention.k_proj(x)
            value = key if layer.values_are_keys else attention.v_proj(x)
        if described.qk_norm == "whole":
            query, key = attention.q_norm(query), attention.k_norm(key)
        shape = (*x.shape[:-1], -1, width)
        query, key, value = (one.view(shape) for one in (query, key, value))  # [B, T, heads, D]
        if described.qk_norm == "head":
            query, key = attention.q_norm(query), attention.k_norm(key)
        if described.v_norm:
            value = attention.v_norm(value)
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        if layer.rope is not None:
            cos, sin = angles[layer.rope_name]
            query, key = (rotate(one, cos, sin, layer.rope.is_interleaved) for one in (query, key))
            query = _grown(query, layer.rope, positions)
        return query, key, value

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [..., hidden], from `run_layers`; returns [..., V]."""
        return logits_of(self.model, hidden, self.architecture)


def _grown(query: Tensor, rope: Rope, positions: Tensor) -> Tensor:
    """query: [B, heads, T, D]; positions: [B or 1, T]."""
    if not rope.query_growth:
        return query
    first = rope.scaling["original_max_position_embeddings"]
    factor = 1 + rope.query_growth * torch.log(1 + torch.floor(positions / first))
    return query * factor[:, None, :, None].to(query.dtype)


def parts(
    prompts: Sequence[tuple[int, ...]], tokens: int, padded: Callable[[int], int] = int
) -> list[list[tuple[int, ...]]]:
    """The prompts in portions of at most `tokens` tokens each, counting padding; at least one prompt each. padded: the
    length of rows, for that of the longest prompt. (pure)"""
    found: list[list[tuple[int, ...]]] = []
    for prompt in sorted(prompts, key=len):
        if not found or (len(found[-1]) + 1) * padded(len(prompt)) > tokens:
            found.append([])
        found[-1].append(prompt)
    return found
