"""Triton kernels for a decode step's products over NF4 or bfloat16 weights, for GPUs without the CUDA C++ kernels."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import triton
import triton.language as tl


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
def _nf4_product(x, weight, absmax, levels, rows, columns, num_rows, begin, end, K, HALF: tl.constexpr):
    """The same for a weight of packed codes [N, K / 2] with one scale per 64. Each weight is rounded to bfloat16 as in
    training. begin and end are multiples of HALF, N of the block's columns."""
    acc = tl.zeros((columns.shape[0], rows.shape[0]), tl.float32)
    BLOCKS: tl.constexpr = HALF // 32
    for at in range(begin, end, HALF):
        words = at + tl.arange(0, HALF)
        x_words = tl.load(x + rows[None, :] * (K // 2) + words[:, None], mask=(rows < num_rows)[None, :], other=0)
        codes = tl.load(weight + columns[:, None] * (K // 2) + words[None, :]).to(tl.int32)
        blocks = at // 32 + tl.arange(0, BLOCKS)
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
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[split, m, n] of up to three weights side by side, ending at end0, end1 and N; then the adapters' A."""
    tile, split = tl.program_id(0), tl.program_id(1)
    rows = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    begin = split * words_a_split
    end = tl.minimum(begin + words_a_split, K // 2)
    first = tile * BLOCK_N
    columns = first + tl.arange(0, BLOCK_N)
    width = N + R
    if first < N:
        weight = w0
        absmax = s0
        offset = end0 * 0
        if first >= end0:
            weight = w1
            absmax = s1
            offset = end0
        if first >= end1:
            weight = w2
            absmax = s2
            offset = end1
        if IS_NF4:
            acc = _nf4_product(x, weight, absmax, levels, rows, columns - offset, num_rows, begin, end, K, HALF)
        else:
            acc = _dense_product(x, weight, rows, columns - offset, num_rows, N, begin, end, K, HALF)
    else:
        acc = _dense_product(x, lora_a, rows, columns - N, num_rows, R, begin, end, K, HALF)
    places = out + (split * num_rows + rows[None, :]) * width + columns[:, None]
    tl.store(places, acc, mask=(rows < num_rows)[None, :] & (columns < width)[:, None])


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
    IS_NF4: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """silu(x W_gate^T) * (x W_up^T), [M, N] in bfloat16; for layers without adapters."""
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if IS_NF4:
        gate = _nf4_product(x, w_gate, s_gate, levels, rows, columns, num_rows, 0, K // 2, K, HALF)
        up = _nf4_product(x, w_up, s_up, levels, rows, columns, num_rows, 0, K // 2, K, HALF)
    else:
        gate = _dense_product(x, w_gate, rows, columns, num_rows, N, 0, K // 2, K, HALF)
        up = _dense_product(x, w_up, rows, columns, num_rows, N, 0, K // 2, K, HALF)
    gate = gate.to(tl.bfloat16).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(tl.bfloat16).to(tl.float32)
    found = silu * up.to(tl.bfloat16).to(tl.float32)
    places = out + rows[None, :] * N + columns[:, None]
    tl.store(places, found.to(tl.bfloat16), mask=(rows < num_rows)[None, :] & (columns < N)[:, None])
