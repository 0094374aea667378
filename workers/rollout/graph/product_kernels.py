"""Triton kernels for a decode step's products over NF4 or bfloat16 weights, for GPUs without the CUDA C++ kernels."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import triton
import triton.language as tl

from workers.rollout.graph.norm_kernels import activation


@triton.jit
def _halves(word):
    """The two bfloat16 values of a 32-bit word; the one at the lower address first."""
    first = (word & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    second = ((word >> 16) & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return first, second


@triton.jit
def _dense_product(x, weight, rows, columns, num_rows, num_columns, begin, end, K, HALF: tl.constexpr):
    """Transposed product of x: [M, K] and weight: [N, K], both as words of two values, over the words begin to end."""
    acc = tl.zeros((columns.shape[0], rows.shape[0]), tl.float32)
    for at in range(begin, end, HALF):
        words = at + tl.arange(0, HALF)
        x_words = tl.load(
            x + rows[None, :] * (K // 2) + words[:, None],
            mask=(rows < num_rows)[None, :] & (words < end)[:, None],
            other=0,
        )
        w_words = tl.load(
            weight + columns[:, None] * (K // 2) + words[None, :],
            mask=(columns < num_columns)[:, None] & (words < end)[None, :],
            other=0,
        )
        x_first, x_second = _halves(x_words)
        w_first, w_second = _halves(w_words)
        acc = tl.dot(w_first, x_first, acc)
        acc = tl.dot(w_second, x_second, acc)
    return acc


@triton.jit
def _nf4_product(
    x,
    weight,
    absmax,
    levels,
    rows,
    columns,
    num_rows,
    num_columns,
    begin,
    end,
    K,
    HALF: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """The same for a weight of packed codes [N, K / 2] with one scale per 64. Each weight is rounded to bfloat16 as in
    training. begin and end are multiples of HALF, N of the block's columns unless RAGGED."""
    acc = tl.zeros((columns.shape[0], rows.shape[0]), tl.float32)
    BLOCKS: tl.constexpr = HALF // 32
    for at in range(begin, end, HALF):
        words = at + tl.arange(0, HALF)
        x_words = tl.load(x + rows[None, :] * (K // 2) + words[:, None], mask=(rows < num_rows)[None, :], other=0)
        blocks = at // 32 + tl.arange(0, BLOCKS)
        if RAGGED:
            is_there = (columns < num_columns)[:, None]
            codes = tl.load(weight + columns[:, None] * (K // 2) + words[None, :], mask=is_there, other=0).to(tl.int32)
            scale = tl.load(absmax + columns[:, None] * (K // 64) + blocks[None, :], mask=is_there, other=0.0)
        else:
            codes = tl.load(weight + columns[:, None] * (K // 2) + words[None, :]).to(tl.int32)
            scale = tl.load(absmax + columns[:, None] * (K // 64) + blocks[None, :])  # [N, BLOCKS]
        scale = tl.broadcast_to(scale[:, :, None], (columns.shape[0], BLOCKS, 32))
        scale = tl.reshape(scale, (columns.shape[0], HALF))
        x_first, x_second = _halves(x_words)
        w_first = (tl.load(levels + (codes >> 4)) * scale).to(tl.bfloat16)
        w_second = (tl.load(levels + (codes & 15)) * scale).to(tl.bfloat16)
        acc = tl.dot(w_first, x_first, acc)
        acc = tl.dot(w_second, x_second, acc)
    return acc


@triton.jit
def project(
    x,
    w0,
    w1,
    w2,
    s0,
    s1,
    s2,
    lora_a,
    levels,
    out,
    num_rows,
    K,
    N,
    R,
    end0,
    end1,
    words_a_split,
    IS_NF4: tl.constexpr,
    RAGGED: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[split, m, n] of up to three weights side by side, ending at end0, end1 and N; then the adapters' A."""
    tile, split = tl.program_id(0), tl.program_id(1)
    rows = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    begin = split * words_a_split
    end = tl.minimum(begin + words_a_split, K // 2)
    width = N + R
    # No tile belongs to two weights.
    tiles0 = tl.cdiv(end0, BLOCK_N)
    tiles1 = tiles0 + tl.cdiv(end1 - end0, BLOCK_N)
    tiles2 = tiles1 + tl.cdiv(N - end1, BLOCK_N)
    if tile < tiles2:
        weight = w0
        absmax = s0
        first = tile * BLOCK_N
        offset = end0 * 0
        count = end0
        if tile >= tiles0:
            weight = w1
            absmax = s1
            first = (tile - tiles0) * BLOCK_N
            offset = end0
            count = end1 - end0
        if tile >= tiles1:
            weight = w2
            absmax = s2
            first = (tile - tiles1) * BLOCK_N
            offset = end1
            count = N - end1
        columns = first + tl.arange(0, BLOCK_N)
        if IS_NF4:
            acc = _nf4_product(x, weight, absmax, levels, rows, columns, num_rows, count, begin, end, K, HALF, RAGGED)
        else:
            acc = _dense_product(x, weight, rows, columns, num_rows, count, begin, end, K, HALF)
    else:
        offset = N
        count = R
        columns = (tile - tiles2) * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = _dense_product(x, lora_a, rows, columns, num_rows, R, begin, end, K, HALF)
    places = out + (split * num_rows + rows[None, :]) * width + offset + columns[:, None]
    tl.store(places, acc, mask=(rows < num_rows)[None, :] & (columns < count)[:, None])


@triton.jit
def gate_up(
    x,
    w_gate,
    w_up,
    s_gate,
    s_up,
    levels,
    out,
    num_rows,
    K,
    N,
    KIND: tl.constexpr,
    IS_NF4: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """activation(x W_gate^T) * (x W_up^T), [M, N] in bfloat16; for layers without adapters."""
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if IS_NF4:
        gate = _nf4_product(x, w_gate, s_gate, levels, rows, columns, num_rows, N, 0, K // 2, K, HALF, False)
        up = _nf4_product(x, w_up, s_up, levels, rows, columns, num_rows, N, 0, K // 2, K, HALF, False)
    else:
        gate = _dense_product(x, w_gate, rows, columns, num_rows, N, 0, K // 2, K, HALF)
        up = _dense_product(x, w_up, rows, columns, num_rows, N, 0, K // 2, K, HALF)
    gate = gate.to(tl.bfloat16).to(tl.float32)
    found = activation(gate, levels, KIND).to(tl.bfloat16).to(tl.float32) * up.to(tl.bfloat16).to(tl.float32)
    places = out + rows[None, :] * N + columns[:, None]
    tl.store(places, found.to(tl.bfloat16), mask=(rows < num_rows)[None, :] & (columns < N)[:, None])
