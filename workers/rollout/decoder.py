"""A model's layers around our own attention. Engines with their own cache read prompts through it.

`profiles.architecture.supports` lists the supported models. Weights are never copied, so the next rollout sees an
optimiser step at once. Not done: sliding windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from profiles.shapes import shape_of
from workers.models.fused_layers import normed, rotate, stream_of
from workers.models.plain import reason_of
from workers.rollout.engine import EngineUnavailable

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query, key, value), each [B, its heads, T, head_dim] -> [B, heads, T, head_dim]"""
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
        self.key_heads, self.head_dim = self._shape.num_key_value_heads, self._shape.head_dim
        self.group = self._shape.num_attention_heads // self.key_heads
        """Query heads per key head."""
        self.rope = torch.empty(2, 0, self.head_dim)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.model.model.embed_tokens.weight.dtype
        return found

    @torch.inference_mode()
    def grow_rope(self, length: int) -> bool:
        """Extend the table of rotary cosines and sines, [2, T, head_dim], to `length` positions. True if it grew."""
        if self.rope.shape[1] >= length:
            return False
        positions = torch.arange(length, device=self.model.device)[None]
        like = next(self.model.parameters())
        self.rope = torch.stack(self.model.model.rotary_emb(like, positions))[:, 0].to(self.dtype).contiguous()
        return True

    def readable_tokens(self) -> int:
        """Tokens whose activations in one layer are about READ_BYTES."""
        a_token = self.dtype.itemsize * (4 * self._shape.intermediate_size + 6 * self._shape.hidden_size)
        return max(1, READ_BYTES // a_token)

    def run_layers(self, ids: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """The model's own modules around `attend`. ids: [B, T]; returns [B, T, hidden]."""
        decoder = self.model.model
        hidden = decoder.embed_tokens(ids).to(stream_of(self.model))
        shape = (*ids.shape, -1, self.head_dim)
        for layer in decoder.layers:
            attention, x = layer.self_attn, normed(layer.input_layernorm, hidden)
            query = rotate(attention.q_proj(x).view(shape).transpose(1, 2), cos, sin)
            key = rotate(attention.k_proj(x).view(shape).transpose(1, 2), cos, sin)
            value = attention.v_proj(x).view(shape).transpose(1, 2)
            mixed = attend(query, key, value).transpose(1, 2).flatten(2)  # [B, T, heads * head_dim]
            hidden = hidden + attention.o_proj(mixed)
            hidden = hidden + layer.mlp(normed(layer.post_attention_layernorm, hidden))
        return normed(decoder.norm, hidden)


def parts(prompts: Sequence[tuple[int, ...]], tokens: int) -> list[list[tuple[int, ...]]]:
    """The prompts in portions of at most `tokens` tokens each, counting padding; at least one prompt each. (pure)"""
    found: list[list[tuple[int, ...]]] = []
    for prompt in sorted(prompts, key=len):
        if not found or (len(found[-1]) + 1) * len(prompt) > tokens:
            found.append([])
        found[-1].append(prompt)
    return found
