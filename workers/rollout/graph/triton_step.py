"""The operations of a decode step as Triton kernels: nine launches per layer, all capturable in a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from workers.models.nf4 import levels
from workers.rollout.graph import kernels, product_kernels
from workers.rollout.graph.cuda import can_chain
from workers.rollout.graph.cuts import KEY_BLOCK, blocks_of, key_splits, launch_for
from workers.rollout.graph.state import State
from workers.rollout.graph.step_weights import Adapters, Projection, Weights

VOCABULARY_TILE = 4096


@dataclass
class Inputs:
    """x of a projection, in the layout that its kernel reads."""

    data: Tensor
    rows: int


@dataclass
class Parts:
    """data: float32 [splits, M, N + R]; the last R columns are x A^T."""

    data: Tensor
    splits: int
    columns: int


class TritonOperations:
    """`Operations` on a CUDA device, in bfloat16."""

    fragments = False
    """Whether x has the layout of the CUDA products."""

    def __init__(self, device: torch.device) -> None:
        self.levels = levels().to(device)
        self.processors = processors_of(device)
        self.nothing = torch.zeros(1, device=device)
        self.no_words = torch.zeros(1, dtype=torch.int32, device=device)
        self.chain = {"CHAINED": True, "launch_pdl": True} if can_chain(device) else {"CHAINED": False}

    def embed(self, tokens: Tensor, weights: Weights) -> Tensor:
        """Neither this nor `draw` is chained, so everything before a step is done when its first kernels begin."""
        return weights.embedding[tokens]

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
    ) -> tuple[Tensor, Any]:
        rows, hidden = residual.shape
        x = self.inputs(rows, hidden, residual.device)
        out = torch.empty(rows, hidden, dtype=torch.bfloat16, device=residual.device) if is_last else x.data
        new = torch.empty_like(residual, dtype=stream) if parts is not None else residual
        a, b, rank, scale = self._adapters(projection)
        kernels.add_norm[(rows,)](
            residual,
            self.nothing if parts is None else parts.data,
            b,
            norm,
            out,
            new,
            rows,
            hidden,
            0 if a is None else a.shape[0],
            eps,
            scale,
            SPLITS=0 if parts is None else parts.splits,
            RANK=rank,
            BLOCK=triton.next_power_of_2(hidden),
            FRAGMENTS=self.fragments and not is_last,
            num_warps=8,
            **self.chain,
        )
        return new, out if is_last else x

    def inputs(self, rows: int, columns: int, device: torch.device) -> Inputs:
        """An empty x for a projection."""
        return Inputs(torch.empty(rows, columns, dtype=torch.bfloat16, device=device), rows)

    def _adapters(self, projection: Projection | None) -> tuple[Tensor | None, Tensor, int, float]:
        found: Adapters | None = None if projection is None else projection.adapters
        return (None, self.nothing, 0, 0.0) if found is None else (found.a, found.b, found.rank, found.scale)

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
        grid = (triton.cdiv(columns, cut.columns) + triton.cdiv(extra, cut.columns), cut.splits, blocks_of(rows)[1])
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
            HALF=cut.words,
            BLOCK_M=blocks_of(rows)[0],
            BLOCK_N=cut.columns,
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
        return Parts(out, cut.splits, columns)

    def attention(
        self, parts: Parts, projection: Projection, state: State, layer: int, rope: Tensor, weights: Weights
    ) -> Inputs:
        rows, dim = parts.data.shape[1], weights.head_dim
        heads, key_heads = weights.heads, weights.key_heads
        device = parts.data.device
        query = torch.empty(rows, heads, dim, dtype=torch.bfloat16, device=device)
        a, b, rank, scale = self._adapters(projection)
        keys, values = state.keys[layer], state.values[layer]
        length = state.shape.cache_length
        kernels.rope_write[(rows, heads + 2 * key_heads)](
            parts.data,
            self.nothing if projection.bias is None else projection.bias,
            b,
            rope,
            state.positions,
            query,
            keys,
            values,
            rows,
            parts.columns,
            0 if a is None else a.shape[0],
            rope.shape[1],
            length,
            scale,
            HEADS=heads,
            KEY_HEADS=key_heads,
            DIM=dim,
            SPLITS=parts.splits,
            RANK=rank,
            HAS_BIAS=projection.bias is not None,
            num_warps=1,
            **self.chain,
        )
        splits = key_splits(rows * key_heads, length, self.processors)
        tops, sums = torch.empty(2, rows * heads * splits, device=device)
        mixed = torch.empty(rows * heads * splits, dim, device=device)
        out = self.inputs(rows, heads * dim, device)
        kernels.attend[(rows, key_heads, splits)](
            query,
            keys,
            values,
            state.positions,
            tops,
            sums,
            mixed,
            dim**-0.5,
            length,
            HEADS=heads,
            KEY_HEADS=key_heads,
            DIM=dim,
            GROUP=max(16, triton.next_power_of_2(heads // key_heads)),
            SPLITS=splits,
            BLOCK=KEY_BLOCK,
            num_warps=4,
            **self.chain,
        )
        kernels.combine[(rows * heads,)](
            tops,
            sums,
            mixed,
            out.data,
            HEADS=heads,
            DIM=dim,
            SPLITS=splits,
            FRAGMENTS=self.fragments,
            num_warps=2,
            **self.chain,
        )
        return out

    def activated(self, x: Inputs, projection: Projection) -> Inputs:
        """`gate_up` in two launches: for layers with adapters, or if its sums do not fit one launch."""
        columns, block = projection.ends[0], 512
        parts = self.project(x, projection)
        a, b, rank, scale = self._adapters(projection)
        out = self.inputs(x.rows, columns, x.data.device)
        kernels.activate[(x.rows, triton.cdiv(columns, block))](
            parts.data,
            b,
            out.data,
            x.rows,
            columns,
            0 if a is None else a.shape[0],
            scale,
            SPLITS=parts.splits,
            RANK=rank,
            BLOCK=block,
            FRAGMENTS=self.fragments,
            num_warps=4,
            **self.chain,
        )
        return out

    def gate_up(self, x: Inputs, projection: Projection) -> Inputs:
        if projection.adapters is not None:
            return self.activated(x, projection)
        columns = projection.ends[0]
        rows, inputs = x.rows, projection.matrices[0].shape[1]
        out = self.inputs(rows, columns, x.data.device)
        gate, up = projection.matrices
        is_nf4 = gate.absmax is not None
        cut = launch_for(columns, inputs, self.processors)
        product_kernels.gate_up[(triton.cdiv(columns, cut.columns), blocks_of(rows)[1])](
            words(x.data),
            gate.data if is_nf4 else words(gate.data),
            up.data if is_nf4 else words(up.data),
            self.nothing if gate.absmax is None else gate.absmax,
            self.nothing if up.absmax is None else up.absmax,
            self.levels,
            out.data,
            rows,
            inputs,
            columns,
            IS_NF4=is_nf4,
            HALF=cut.words,
            BLOCK_M=blocks_of(rows)[0],
            BLOCK_N=cut.columns,
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
        return out

    def draw(self, logits: Tensor, state: State) -> None:
        rows, vocabulary = logits.shape
        tiles = triton.cdiv(vocabulary, VOCABULARY_TILE)
        tops, sums, inner = torch.empty(3, rows * tiles, device=logits.device)
        arg = torch.empty(rows * tiles, dtype=torch.int32, device=logits.device)
        kernels.vocabulary_tiles[(rows, tiles)](
            logits, state.temperature, tops, sums, inner, arg, vocabulary, tiles, TILE=VOCABULARY_TILE, num_warps=8
        )
        kernels.draw[(rows,)](
            logits,
            state.temperature,
            tops,
            sums,
            inner,
            arg,
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
            tiles,
            state.shape.room,
            TILES=max(2, triton.next_power_of_2(tiles)),
            TILE=VOCABULARY_TILE,
            STOPS=len(state.stop_ids),
            num_warps=8,
        )


def words(x: Tensor) -> Tensor:
    """A bfloat16 tensor as 32-bit words of two values."""
    return x.view(torch.int32)


def three(tensors: list[Any]) -> list[Any]:
    return [*tensors, *[tensors[-1]] * (3 - len(tensors))]


@cache
def processors_of(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
