"""One decode step: every row reads a token and draws the next. Written once, over two kinds of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, relu, rms_norm, scaled_dot_product_attention, silu

from workers.head_products import times_head
from workers.models.fused_layers import rotate
from workers.models.head import capped
from workers.rollout.engine import cumulated_sum
from workers.rollout.graph.lookup import Lanes, accept, guess
from workers.rollout.graph.state import State
from workers.rollout.graph.step_weights import Gate, Heads, Layer, Projection, Sum, Weights

Inputs = Any
"""x of a projection, [M, K], in the operations' own layout."""
Parts = Any
"""A projection's result, in whatever form the other operations read it."""


class Operations(Protocol):
    """The building blocks of a step. residual: the residual stream, [M, hidden] in `weights.stream`."""

    def tune(self, weights: Weights, rows: int, step: Callable[[], None]) -> None:
        """Measure which way to compute `step` is the fastest, and use that from now on. rows: of the step. Call it once
        the step has run; it is captured and replayed."""

    def of(self, weights: Weights, rows: int) -> Operations:
        """The operations that are the fastest for a step of `rows` rows."""

    def embed(self, tokens: Tensor, weights: Weights) -> Tensor:
        """[M, hidden] in the weights' dtype; the residual stream starts from it."""

    def add_norm(
        self,
        residual: Tensor,
        parts: Parts | None,
        projection: Projection | None,
        norm: Tensor | None,
        how: Sum,
        *,
        mlp: Layer | None = None,
        is_last: bool = False,
    ) -> tuple[Tensor, Inputs]:
        """(residual + projection in the dtype of the stream, its RMS norm, or itself if `norm` is None). mlp: the layer
        whose gate and up read the norm; is_last: the output head follows, not a projection."""

    def project(self, x: Inputs, projection: Projection) -> Parts: ...

    def attention(
        self, parts: Parts, projection: Projection, state: State, layer: int, rope: Tensor | None, one: Layer, how: Sum
    ) -> Inputs:
        """[M, heads * width]. Writes the new keys and values into the caches. rope: [2, T, rotated width]; how: eps and
        plus_one of the norms of heads."""

    def gate_up(self, x: Inputs, projection: Projection, gate: Gate) -> Inputs:
        """activation(gate) * up, or activation(up) without a gate: [M, intermediate]"""

    def draw(self, logits: Tensor, state: State, scale: float = 1.0, cap: float | None = None) -> None:
        """The next token of each active row among the first M. logits: [M, V], in rows of any stride,
        which become cap(scale * logits)."""

    def guess(self, lanes: Lanes, state: State, rows: int) -> None:
        """As `lookup.guess`."""

    def accept(self, lanes: Lanes, state: State, rows: int) -> None:
        """As `lookup.accept`."""


def decode_step(weights: Weights, state: State, ropes: Mapping[str, Tensor], rows: int, ops: Operations) -> None:
    """One more token for each of the first `rows` slots. ropes: tables by the layers' `rope_name`."""
    residual = ops.embed(state.tokens[:rows], weights)
    parts: Parts | None = None
    before: Projection | None = None
    how = weights.plain
    for number, layer in enumerate(weights.layers):
        residual, x = ops.add_norm(residual, parts, before, layer.before_attention, how)
        rope = None if layer.heads.rope is None else ropes[layer.heads.rope_name]
        qkv = ops.project(x, layer.qkv)
        mixed = ops.attention(qkv, layer.qkv, state, number, rope, layer, weights.plain)
        parts, before = ops.project(mixed, layer.out), layer.out
        residual, x = ops.add_norm(residual, parts, before, layer.before_mlp, layer.of_attention, mlp=layer)
        parts, before = ops.project(ops.gate_up(x, layer.gate_up, layer.gate), layer.down), layer.down
        how = layer.of_mlp
    _, x = ops.add_norm(residual, parts, before, weights.norm, how, is_last=True)
    ops.draw(times_head(x, weights.head), state, weights.described.logit_scale, weights.described.logit_cap)


def lookup_step(
    weights: Weights, lanes: Lanes, state: State, ropes: Mapping[str, Tensor], rows: int, ops: Operations
) -> None:
    """At least one more token for each active row of the first `rows` slots, whose lanes hold guesses, and new
    guesses."""
    decode_step(weights, lanes, ropes, rows * lanes.count, ops)
    ops.accept(lanes, state, rows)
    ops.guess(lanes, state, rows)


class TorchOperations:
    """Plain PyTorch: the reference for the kernels, and the fallback without a GPU."""

    def of(self, weights: Weights, rows: int) -> TorchOperations:
        return self

    def tune(self, weights: Weights, rows: int, step: Callable[[], None]) -> None:
        """PyTorch chooses for itself."""

    def guess(self, lanes: Lanes, state: State, rows: int) -> None:
        guess(lanes, state, rows)

    def accept(self, lanes: Lanes, state: State, rows: int) -> None:
        accept(lanes, state, rows)

    def embed(self, tokens: Tensor, weights: Weights) -> Tensor:
        found = weights.embedding[tokens]
        return found if weights.embedding_scale == 1.0 else found * weights.embedding_scale

    def add_norm(
        self,
        residual: Tensor,
        parts: Tensor | None,
        projection: Projection | None,
        norm: Tensor | None,
        how: Sum,
        *,
        mlp: Layer | None = None,
        is_last: bool = False,
    ) -> tuple[Tensor, Tensor]:
        residual = residual.to(how.stream)
        if parts is not None:
            if how.after is not None:
                parts = normed(parts, how.after, how)
            residual = residual + (parts if how.scale == 1.0 else parts * how.scale)
            if how.factor is not None:
                residual = residual * how.factor.to(residual.dtype)
        return residual, residual.to(how.dtype) if norm is None else normed(residual, norm, how)

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
        self, parts: Tensor, projection: Projection, state: State, layer: int, rope: Tensor | None, one: Layer, how: Sum
    ) -> Tensor:
        rows, heads = len(parts), one.heads
        positions = state.positions[:rows].long()
        query, key, value = prepared(parts, heads, how)
        if rope is not None and heads.rope is not None:
            cos, sin = rope[:, positions, None]  # [M, 1, rotated width]
            query, key = (rotate(each, cos, sin, heads.rope.is_interleaved) for each in (query, key))
        growth, first = heads.growth
        if growth:
            query = query * (1 + growth * torch.log1p(torch.floor(positions / first)))[:, None, None].to(query.dtype)
        everyone = torch.arange(rows, device=parts.device)
        state.write(layer, everyone, positions, key, value)
        length = int(positions.max()) + 1
        places = torch.arange(length, device=parts.device)
        seen = places <= positions[:, None]  # [M, T]
        if heads.window:
            seen &= places > positions[:, None] - heads.window
        query = query.view(rows, heads.keys, -1, heads.width)
        (keys, values), mask = state.read(layer, everyone, length), seen[:, None, None]
        if not heads.cap:
            mixed = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=heads.scale)
        else:
            scores = capped((query @ keys.transpose(-1, -2)).float() * heads.scale, heads.cap)
            mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(values.dtype) @ values
        return mixed.reshape(rows, -1)

    def gate_up(self, x: Tensor, projection: Projection, gate: Gate) -> Tensor:
        found = self.project(x, projection)
        if not gate.has_gate:
            return activated(found, gate)
        first, up = found.chunk(2, 1)
        return activated(first, gate) * up

    def draw(self, logits: Tensor, state: State, scale: float = 1.0, cap: float | None = None) -> None:
        rows = len(logits)
        active = state.active[:rows] > 0
        counts = state.counts[:rows].long()
        everyone = torch.arange(rows, device=logits.device)
        now = counts.clamp(max=state.shape.room - 1)  # the count of a finished row is one beyond
        logits = capped(logits.float() * scale, cap)
        log_p = torch.log_softmax(logits / state.temperature, -1)  # [M, V]
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


def normed(x: Tensor, weight: Tensor | None, how: Sum) -> Tensor:
    """RMS norm over the last dimension, in the dtype of x, rounded to that of the model."""
    scale = None if weight is None else weight.to(x.dtype) + 1 if how.plus_one else weight.to(x.dtype)
    return rms_norm(x, x.shape[-1:], scale, how.eps).to(how.dtype)


def prepared(parts: Tensor, heads: Heads, how: Sum) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, [M, their heads, width], normed."""
    widths = [heads.queries * heads.width, heads.keys * heads.width]
    query, key, *rest = torch.split(parts, [*widths, *([] if heads.values_are_keys else widths[1:])], 1)
    value = rest[0] if rest else key
    if heads.norm == "whole":
        query, key = normed(query, heads.of_queries, how), normed(key, heads.of_keys, how)
    query, key, value = (one.reshape(len(parts), -1, heads.width) for one in (query, key, value))
    if heads.norm == "head":
        query, key = normed(query, heads.of_queries, how), normed(key, heads.of_keys, how)
    return query, key, normed(value, None, how) if heads.has_value_norm else value


def activated(x: Tensor, gate: Gate) -> Tensor:
    if gate.name == "silu":
        return silu(x)
    if gate.name == "gelu_pytorch_tanh":
        return gelu(x, approximate="tanh")
    if gate.name == "relu2":
        return relu(x).square()
    assert gate.name == "xielu" and gate.slopes is not None
    above, below, beta, eps = gate.slopes.to(x.dtype)
    found: Tensor = torch.where(x > 0, above * x * x, (torch.expm1(torch.minimum(x, eps)) - x) * below) + beta * x
    return found
