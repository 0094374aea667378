"""One decode step: every row reads a token and draws the next. Written once, over two kinds of operations."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from workers.models.fused_layers import rotate
from workers.rollout.engine import cumulated_sum
from workers.rollout.graph.state import State
from workers.rollout.graph.step_weights import Projection, Weights

Inputs = Any
"""x of a projection, [M, K], in the operations' own layout."""
Parts = Any
"""A projection's result, in whatever form the other operations read it."""


class Operations(Protocol):
    """The building blocks of a step. residual: the residual stream, [M, hidden] in `weights.stream`."""

    def embed(self, tokens: Tensor, weights: Weights) -> Tensor:
        """[M, hidden] in the weights' dtype; the residual stream starts from it."""

    def add_norm(
        self,
        residual: Tensor,
        parts: Parts | None,
        projection: Projection | None,
        norm: Tensor,
        eps: float,
        stream: torch.dtype,
        *,
        is_last: bool = False,
    ) -> tuple[Tensor, Inputs]:
        """(residual + projection in the dtype `stream`, its RMS norm). is_last: the output head follows, not a
        projection."""

    def project(self, x: Inputs, projection: Projection) -> Parts: ...

    def attention(
        self, parts: Parts, projection: Projection, state: State, layer: int, rope: Tensor, weights: Weights
    ) -> Inputs:
        """[M, heads * head_dim]. Writes the new keys and values into the caches. rope: [2, T, head_dim]."""

    def gate_up(self, x: Inputs, projection: Projection) -> Inputs:
        """silu(gate) * up: [M, intermediate]"""

    def draw(self, logits: Tensor, state: State) -> None:
        """The next token of each active row among the first M. logits: [M, V]."""


def decode_step(weights: Weights, state: State, rope: Tensor, rows: int, ops: Operations) -> None:
    """One more token for each of the first `rows` slots."""
    residual = ops.embed(state.tokens[:rows], weights)
    parts: Parts | None = None
    before: Projection | None = None
    for number, layer in enumerate(weights.layers):
        residual, x = ops.add_norm(residual, parts, before, layer.first_norm, weights.eps, weights.stream)
        mixed = ops.attention(ops.project(x, layer.qkv), layer.qkv, state, number, rope, weights)
        parts, before = ops.project(mixed, layer.out), layer.out
        residual, x = ops.add_norm(residual, parts, before, layer.second_norm, weights.eps, weights.stream)
        parts, before = ops.project(ops.gate_up(x, layer.gate_up), layer.down), layer.down
    _, x = ops.add_norm(residual, parts, before, weights.norm, weights.eps, weights.stream, is_last=True)
    ops.draw(linear(x, weights.head), state)


class TorchOperations:
    """Plain PyTorch: the reference for the kernels, and the fallback without a GPU."""

    def embed(self, tokens: Tensor, weights: Weights) -> Tensor:
        return weights.embedding[tokens]

    def add_norm(
        self,
        residual: Tensor,
        parts: Tensor | None,
        projection: Projection | None,
        norm: Tensor,
        eps: float,
        stream: torch.dtype,
        *,
        is_last: bool = False,
    ) -> tuple[Tensor, Tensor]:
        residual = residual.to(stream)
        if parts is not None:
            residual = residual + parts
        return residual, rms_norm(residual, norm.shape, norm.to(residual.dtype), eps).to(norm.dtype)

    def project(self, x: Tensor, projection: Projection) -> Tensor:
        """[M, N]"""
        found = torch.cat([linear(x, matrix.dense(x.dtype)) for matrix in projection.matrices], 1)
        if projection.bias is not None:
            found = found + projection.bias.to(found.dtype)
        if (adapters := projection.adapters) is None:
            return found
        inner = linear(x.to(adapters.a.dtype), adapters.a)  # [M, matrices * rank]
        begin = 0
        for number, end in enumerate(projection.ends):
            own = inner[:, number * adapters.rank : (number + 1) * adapters.rank]
            found[:, begin:end] += (own @ adapters.b[:, begin:end] * adapters.scale).to(x.dtype)
            begin = end
        return found

    def attention(
        self, parts: Tensor, projection: Projection, state: State, layer: int, rope: Tensor, weights: Weights
    ) -> Tensor:
        rows, dim = len(parts), weights.head_dim
        positions = state.positions[:rows].long()
        cos, sin = rope[:, positions, None]  # [M, 1, dim]
        heads = parts.view(rows, -1, dim)
        query, key, value = torch.tensor_split(heads, (weights.heads, weights.heads + weights.key_heads), 1)
        keys, values = state.keys[layer], state.values[layer]
        everyone = torch.arange(rows, device=parts.device)
        keys[everyone, :, positions], values[everyone, :, positions] = rotate(key, cos, sin), value
        length = int(positions.max()) + 1
        seen = torch.arange(length, device=parts.device) <= positions[:, None]  # [M, T]
        query = rotate(query, cos, sin).view(rows, weights.key_heads, -1, dim)
        mixed = scaled_dot_product_attention(
            query, keys[:rows, :, :length], values[:rows, :, :length], attn_mask=seen[:, None, None]
        )
        return mixed.reshape(rows, -1)

    def gate_up(self, x: Tensor, projection: Projection) -> Tensor:
        gate, up = self.project(x, projection).chunk(2, 1)
        return silu(gate) * up

    def draw(self, logits: Tensor, state: State) -> None:
        rows = len(logits)
        active = state.active[:rows] > 0
        counts = state.counts[:rows].long()
        everyone = torch.arange(rows, device=logits.device)
        now = counts.clamp(max=state.shape.room - 1)  # the count of a finished row is one beyond
        log_p = torch.log_softmax(logits.float() / state.temperature, -1)  # [M, V]
        probabilities = log_p.exp()
        cumulated = cumulated_sum(probabilities)
        below = cumulated <= (state.uniforms[everyone, now] * cumulated[:, -1].clamp(max=1.0))[:, None]
        tokens = below.sum(-1).clamp(max=logits.shape[1] - 1)
        tokens = torch.where(state.greedy > 0, logits.argmax(-1), tokens)
        found = (
            (state.out_ids, tokens.int()),
            (state.out_log_probs, log_p.gather(1, tokens[:, None])[:, 0]),
            (state.out_entropies, -(probabilities * log_p.clamp(min=-1e30)).sum(-1)),
        )
        for out, new in found:
            out[everyone, now] = torch.where(active, new, out[everyone, now])
        state.tokens[:rows] = torch.where(active, tokens.int(), state.tokens[:rows])
        state.counts[:rows] += active.int()
        state.positions[:rows] += active.int()
        is_last = torch.isin(tokens, state.stop_ids) | (state.counts[:rows] >= state.limit)
        state.active[:rows] = (active & ~is_last).int()
