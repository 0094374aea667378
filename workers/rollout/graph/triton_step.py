"""The operations of a decode step as Triton kernels, all capturable in a CUDA graph: eight launches per layer with
adapters, seven where one computes gate and up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from workers.models.nf4 import levels
from workers.rollout.graph import attention_kernels, draw_kernels, lookup_kernels, norm_kernels, product_kernels
from workers.rollout.graph.cuda import can_chain
from workers.rollout.graph.cuts import (
    KEY_BLOCK,
    ROWS,
    blocks_of,
    can_read_together,
    is_one_attention_launch,
    key_splits,
    key_stages,
    launch_for,
)
from workers.rollout.graph.lookup import Lanes
from workers.rollout.graph.pages import PAGE, TEAM
from workers.rollout.graph.state import State
from workers.rollout.graph.step_weights import Adapters, Gate, Heads, Layer, Matrix, Projection, Sum, Weights

VOCABULARY_TILE = 4096
MOST_AHEAD = 128
"""Most lanes of a head whose first keys and values wait in registers: of wider ones they leave no room for the rest."""


@dataclass
class Inputs:
    """x of a projection, in the layout that its kernel reads.

    inner: scale * x A^T of the projection's adapters, float32 [M, R], where its kernel adds their B itself.
    """

    data: Tensor
    rows: int
    inner: Tensor | None = None


@dataclass
class Parts:
    """data: float32 [splits, M, N + R]; the last R columns are x A^T."""

    data: Tensor
    splits: int
    columns: int


class TritonOperations:
    """`Operations` on a CUDA device, in bfloat16."""

    layout = ROWS
    """Of x, for the products that read it."""
    dtype = torch.bfloat16

    def __init__(self, device: torch.device) -> None:
        self.levels = levels().to(device)
        self.processors = processors_of(device)
        self.nothing = torch.zeros(1, device=device)
        self.no_words = torch.zeros(1, dtype=torch.int32, device=device)
        self.chain = {"CHAINED": True, "launch_pdl": True} if can_chain(device) else {"CHAINED": False}

    def of(self, weights: Weights, rows: int) -> TritonOperations:
        return self

    def tune(self, weights: Weights, rows: int, step: Callable[[], None]) -> None:
        """The sizes decide."""

    def embed(self, tokens: Tensor, weights: Weights) -> Tensor:
        """Neither this nor `draw` is chained, so everything before a step is done when its first kernels begin."""
        found = weights.embedding[tokens]
        return found if weights.embedding_scale == 1.0 else found * weights.embedding_scale

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
    ) -> tuple[Tensor, Any]:
        rows, hidden = residual.shape
        x = self.inputs(rows, hidden, residual.device)
        out = torch.empty(rows, hidden, dtype=self.dtype, device=residual.device) if is_last else x.data
        new = torch.empty_like(residual, dtype=how.stream) if parts is not None else residual
        a, b, rank, scale = self._adapters(projection)
        added = None if mlp is None else self.added_by_gate_up(rows, mlp)
        if added is not None:
            x.inner = torch.empty(rows, added.a.shape[0], device=residual.device)
        block = triton.next_power_of_2(hidden)
        tile = norm_kernels.ranks_of(block)
        norm_kernels.add_norm[(rows, 1 if added is None else triton.cdiv(added.a.shape[0], tile))](
            residual,
            self.nothing if parts is None else parts.data,
            self._bias(projection),
            b,
            self.or_nothing(how.after),
            self.or_nothing(how.factor),
            self.or_nothing(norm),
            self.nothing if added is None else added.a,
            out,
            new,
            self.or_nothing(x.inner),
            rows,
            hidden,
            0 if a is None else a.shape[0],
            0 if added is None else added.a.shape[0],
            how.eps,
            how.scale,
            scale,
            0.0 if added is None else added.scale,
            SPLITS=0 if parts is None else parts.splits,
            RANK=rank,
            HAS_BIAS=projection is not None and projection.bias is not None,
            HAS_AFTER=how.after is not None,
            HAS_SCALE=how.scale != 1.0,
            HAS_FACTOR=how.factor is not None,
            HAS_NORM=norm is not None,
            PLUS_ONE=how.plus_one,
            HAS_INNER=added is not None,
            BLOCK=block,
            TILE=tile,
            LAYOUT=ROWS if is_last else self.layout,
            num_warps=8,
            **self.chain,
        )
        return new, out if is_last else x

    def added_by_gate_up(self, rows: int, layer: Layer) -> Adapters | None:
        """The adapters whose B `gate_up` adds to a layer's products itself, given `Inputs.inner`."""
        return None

    def inputs(self, rows: int, columns: int, device: torch.device) -> Inputs:
        """An empty x for a projection."""
        return Inputs(torch.empty(rows, columns, dtype=self.dtype, device=device), rows)

    def _adapters(self, projection: Projection | None) -> tuple[Tensor | None, Tensor, int, float]:
        found: Adapters | None = None if projection is None else projection.adapters
        return (None, self.nothing, 0, 0.0) if found is None else (found.a, found.b, found.rank, found.scale)

    def or_nothing(self, tensor: Tensor | None) -> Tensor:
        return self.nothing if tensor is None else tensor

    def _bias(self, projection: Projection | None) -> Tensor:
        return self.nothing if projection is None else self.or_nothing(projection.bias)

    def project(self, x: Inputs, projection: Projection) -> Parts:
        rows, inputs = x.rows, projection.matrices[0].shape[1]
        columns = projection.ends[-1]
        a, _, _, _ = self._adapters(projection)
        extra = 0 if a is None else a.shape[0]
        cut = launch_for(columns, inputs, self.processors)
        out = torch.empty(cut.splits, rows, columns + extra, dtype=torch.float32, device=x.data.device)
        data = [matrix.data for matrix in projection.matrices]
        scales = [matrix.absmax for matrix in projection.matrices]
        is_nf4 = scales[0] is not None
        ends = projection.ends
        tiles = sum(triton.cdiv(matrix.shape[0], cut.columns) for matrix in projection.matrices)
        grid = (tiles + triton.cdiv(extra, cut.columns), cut.splits, blocks_of(rows)[1])
        product_kernels.project[grid](
            words(x.data),
            *three([one if is_nf4 else words(one) for one in data]),
            *three([self.nothing if one is None else one for one in scales]),
            self.no_words if a is None else words(a),
            self.levels,
            out,
            rows,
            inputs,
            columns,
            extra,
            ends[0],
            ends[min(1, len(ends) - 1)],
            inputs // 2 // cut.splits,
            IS_NF4=is_nf4,
            RAGGED=any(end % cut.columns for end in ends),
            HALF=cut.words,
            BLOCK_M=blocks_of(rows)[0],
            BLOCK_N=cut.columns,
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
        return Parts(out, cut.splits, columns)

    def attention(
        self, parts: Parts, projection: Projection, state: State, layer: int, rope: Tensor | None, one: Layer, how: Sum
    ) -> Inputs:
        rows, heads, device = parts.data.shape[1], one.heads, parts.data.device
        queries, dim, length, width = heads.queries, heads.width, state.shape.cache_length, lanes_of(heads.width)
        members = int(triton.next_power_of_2(queries // heads.keys + 2))
        a, b, rank, scale = self._adapters(projection)
        extra = 0 if a is None else a.shape[0]
        growth, original = heads.growth
        of_parts: dict[str, Any] = {
            "SPLITS": parts.splits,
            "RANK": rank,
            "HAS_BIAS": projection.bias is not None,
            "FUSED": len(projection.matrices) == 1,
            **self.chain,
        }
        found = parts.data, self._bias(projection), b
        factors = self._whole_norms(found, heads, (rows, parts.columns, extra), scale, how.eps, of_parts)
        window = heads.window if heads.window < length else 0
        is_together = state.reads_together and not window and can_read_together(queries // heads.keys, dim)
        own = window or length
        portions, shared = key_splits(rows * heads.keys, own, self.processors), 0
        if is_together:
            own = min(length, state.shape.room + 2 * PAGE)
            portions = max(2, key_splits(rows * heads.keys, own, self.processors))
            shared = key_splits(max(1, rows // TEAM) * heads.keys, length, self.processors)
        is_one = is_one_attention_launch(has_lanes=state.has_lanes, repeated=portions * rank) and not is_together
        query = self.nothing if is_one else torch.empty(rows, queries, dim, dtype=self.dtype, device=device)
        before = (
            *found,
            self.or_nothing(rope),
            state.positions,
            self.or_nothing(heads.of_queries),
            self.or_nothing(heads.of_keys),
            factors,
            query,
            state.keys[layer],
            state.values[layer],
            self.or_nothing(state.table),
        )
        sizes = rows, parts.columns, extra, 0 if rope is None else rope.shape[1], length
        numbers = scale, how.eps, growth, original
        common: dict[str, Any] = {
            "HEADS": queries,
            "KEY_HEADS": heads.keys,
            "DIM": dim,
            "WIDTH": width,
            "MEMBERS": members,
            "ROTATED": dim if rope is None else rope.shape[2],
            "HAS_ROPE": rope is not None,
            "INTERLEAVED": heads.rope is not None and heads.rope.is_interleaved,
            "NORM": heads.norm,
            "PLUS_ONE": how.plus_one,
            "HAS_VALUE_NORM": heads.has_value_norm,
            "VALUES_ARE_KEYS": heads.values_are_keys,
            "GROWS": growth != 0.0,
            "PAGE": 0 if state.table is None else PAGE,
            "num_warps": 4,
            **of_parts,
        }
        if not is_one:
            attention_kernels.rope_write[(rows, heads.keys)](*before, *sizes, *numbers, **common)
        tops, sums = torch.empty(2, rows * queries * (portions + shared), device=device)
        mixed = torch.empty(rows * queries * (portions + shared), dim, device=device)
        out = self.inputs(rows, queries * dim, device)
        together = self.nothing
        if is_together:
            assert state.together is not None
            together = state.together
            attention_kernels.attend_together[(rows, heads.keys, shared)](
                query,
                state.keys[layer],
                state.values[layer],
                state.table,
                together,
                state.teams,
                tops,
                sums,
                mixed,
                length,
                heads.scale,
                heads.cap,
                HEADS=queries,
                KEY_HEADS=heads.keys,
                DIM=dim,
                WIDTH=width,
                PACK=triton.next_power_of_2(queries // heads.keys),
                TEAM=TEAM,
                HAS_CAP=heads.cap != 0.0,
                PORTIONS=portions,
                SHARED=shared,
                BLOCK=KEY_BLOCK,
                PAGE=PAGE,
                num_warps=4,
                **self.chain,
            )
        block = KEY_BLOCK if width <= 256 else KEY_BLOCK // 2
        is_ahead = is_one and width <= MOST_AHEAD
        blocks = math.ceil(math.ceil(own / portions) / block)
        attention_kernels.attend[(rows, heads.keys, portions)](
            *before,
            together,
            tops,
            sums,
            mixed,
            state.arrivals,
            out.data,
            *sizes,
            *numbers,
            heads.scale,
            heads.cap,
            GROUP=max(16, members),
            WINDOW=window,
            HAS_CAP=heads.cap != 0.0,
            PORTIONS=portions,
            SHARED=shared,
            BLOCK=block,
            LAYOUT=self.layout,
            ROTATES=is_one,
            AHEAD=is_ahead,
            num_stages=key_stages(blocks - is_ahead, width, is_paged=state.table is not None),
            **common,
        )
        return out

    def _whole_norms(
        self,
        parts: tuple[Tensor, Tensor, Tensor],
        heads: Heads,
        sizes: tuple[int, int, int],
        scale: float,
        eps: float,
        how: dict[str, Any],
    ) -> Tensor:
        """Factors of the norm over all heads, [M, 2] for queries and keys. Without such a norm the result is unused.

        parts: with bias and adapters; sizes: M, columns, and those of adapters; how: named arguments of the kernel.
        """
        if heads.norm != "whole":
            return self.nothing
        rows, widths = sizes[0], (heads.queries * heads.width, heads.keys * heads.width)
        factors = torch.empty(rows, 2, device=parts[0].device)
        block = triton.next_power_of_2(max(widths))
        how = {**how, "BLOCK": block, "TILE": norm_kernels.ranks_of(block), "num_warps": 8}
        norm_kernels.whole_norms[(rows, 2)](*parts, factors, *sizes, *widths, scale, eps, **how)
        return factors

    def activated(self, x: Inputs, projection: Projection, gate: Gate) -> Inputs:
        """`gate_up` in two launches: for layers with biases, for adapters without `Inputs.inner`, or if its sums do not
        fit one launch."""
        columns = projection.ends[-1] // (2 if gate.has_gate else 1)
        parts = self.project(x, projection)
        a, b, rank, scale = self._adapters(projection)
        tall, block = (16, 128) if rank else (1, 512)  # adapters' B is read once for all rows of a tile
        out = self.inputs(x.rows, columns, x.data.device)
        norm_kernels.activate[(triton.cdiv(x.rows, tall), triton.cdiv(columns, block))](
            parts.data,
            self._bias(projection),
            b,
            self.or_nothing(gate.slopes),
            out.data,
            x.rows,
            columns,
            0 if a is None else a.shape[0],
            scale,
            KIND=gate.name,
            HAS_GATE=gate.has_gate,
            HAS_BIAS=projection.bias is not None,
            UP=len(projection.matrices) - 1,
            SPLITS=parts.splits,
            RANK=rank,
            ROWS=tall,
            BLOCK=block,
            LAYOUT=self.layout,
            num_warps=4,
            **self.chain,
        )
        return out

    def gate_up(self, x: Inputs, projection: Projection, gate: Gate) -> Inputs:
        if not is_one_launch(projection, gate):
            return self.activated(x, projection, gate)
        first, up = pair(projection)
        columns, inputs = first.shape
        rows = x.rows
        out = self.inputs(rows, columns, x.data.device)
        is_nf4 = first.absmax is not None
        cut = launch_for(columns, inputs, self.processors)
        product_kernels.gate_up[(triton.cdiv(columns, cut.columns), blocks_of(rows)[1])](
            words(x.data),
            first.data if is_nf4 else words(first.data),
            up.data if is_nf4 else words(up.data),
            self.or_nothing(first.absmax),
            self.or_nothing(up.absmax),
            self.levels,
            out.data,
            rows,
            inputs,
            columns,
            KIND=gate.name,
            IS_NF4=is_nf4,
            HALF=cut.words,
            BLOCK_M=blocks_of(rows)[0],
            BLOCK_N=cut.columns,
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
        return out

    def draw(self, logits: Tensor, state: State, scale: float = 1.0, cap: float | None = None) -> None:
        rows, vocabulary = logits.shape
        tiles = triton.cdiv(vocabulary, VOCABULARY_TILE)
        tops, sums, inner = torch.empty(3, rows * tiles, device=logits.device)
        arg = torch.empty(rows * tiles, dtype=torch.int32, device=logits.device)
        draw_kernels.draw[(rows, tiles)](
            logits,
            state.temperature,
            tops,
            sums,
            inner,
            arg,
            state.arrivals,
            state.uniforms,
            state.limit,
            state.greedy,
            state.stop_ids,
            state.tokens,
            state.positions,
            state.counts,
            state.active,
            state.out_ids,
            state.out_log_probs,
            state.out_entropies,
            vocabulary,
            logits.stride(0),
            state.shape.room,
            scale,
            cap or 0.0,
            HAS_SCALE=scale != 1.0,
            HAS_CAP=cap is not None,
            NUM_TILES=tiles,
            TILES=max(2, triton.next_power_of_2(tiles)),
            TILE=VOCABULARY_TILE,
            STOPS=len(state.stop_ids),
            num_warps=8,
        )

    def guess(self, lanes: Lanes, state: State, rows: int) -> None:
        assert state.table is not None and state.context is not None
        pages = state.table.shape[1]
        lookup_kernels.guess[(rows,)](
            lanes.tokens,
            lanes.read_tokens,
            lanes.positions,
            lanes.counts,
            lanes.active,
            lanes.uniforms,
            lanes.table,
            state.positions,
            state.counts,
            state.active,
            state.uniforms,
            state.table,
            state.context,
            state.shape.cache_length,
            state.shape.room,
            pages,
            LANES=lanes.count,
            LANES_2=triton.next_power_of_2(lanes.count),
            PAGES_2=triton.next_power_of_2(pages),
            BLOCK=1024,
            num_warps=4,
        )

    def accept(self, lanes: Lanes, state: State, rows: int) -> None:
        assert state.context is not None
        lookup_kernels.accept[(rows,)](
            lanes.read_tokens,
            lanes.out_ids,
            lanes.out_log_probs,
            lanes.out_entropies,
            state.tokens,
            state.positions,
            state.counts,
            state.active,
            state.out_ids,
            state.out_log_probs,
            state.out_entropies,
            state.context,
            state.limit,
            state.stop_ids,
            state.shape.cache_length,
            state.shape.room,
            LANES=lanes.count,
            STOPS=len(state.stop_ids),
            num_warps=1,
        )


def is_one_launch(projection: Projection, gate: Gate) -> bool:
    """Whether the kernels `gate_up` compute it. (pure)"""
    return gate.has_gate and projection.adapters is None and projection.bias is None


def pair(projection: Projection) -> tuple[Matrix, Matrix]:
    """Gate and up, which one matrix may hold."""
    found = projection.matrices
    return found[0].halves() if len(found) == 1 else (found[0], found[1])


def lanes_of(width: int) -> int:
    """Lanes of a head in registers: a power of two, and enough for the tensor cores. (pure)"""
    return max(16, int(triton.next_power_of_2(width)))


def words(x: Tensor) -> Tensor:
    """A bfloat16 tensor as 32-bit words of two values."""
    return x.view(torch.int32)


def three(tensors: list[Any]) -> list[Any]:
    return [*tensors, *[tensors[-1]] * (3 - len(tensors))]


@cache
def processors_of(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
