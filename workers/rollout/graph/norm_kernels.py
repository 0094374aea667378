"""Triton kernels of a decode step that add up the parts of a projection: with the residual stream and its norm, or gate
and up.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import triton
import triton.language as tl

from workers.rollout.graph.kernel_parts import RANKS, begin_chained, place_of_x, rows_of_b, whole, whole_tile


def ranks_of(block: int) -> int:
    """How many of an adapter's ranks fit into the registers of a program, with so many columns each: a power of two."""
    return max(1, min(16, (32 << 10) // block))


@triton.jit
def add_norm(
    residual,
    parts,
    bias,
    lora_b,
    after,
    factor,
    norm,
    lora_a,
    out,
    out_residual,
    inner,
    num_rows,
    H,
    R,
    INNERS,
    eps,
    added_scale,
    lora_scale,
    inner_scale,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_AFTER: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_NORM: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    HAS_INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    LAYOUT: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """residual + projection (no projection if SPLITS is 0), [M, H] in float32 or bfloat16, and its RMS norm, or itself
    without a norm, in bfloat16. The projection may be normed and scaled before, the sum scaled after.

    HAS_INNER: also inner_scale times the product of what is written to `out` with lora_a, [INNERS, H], transposed. Each
    program of a row computes all of its sums and norm, and TILE columns of that product; the first one writes the
    others. TILE is also how many ranks of the projection's adapter are added at a time.
    """
    row, tile = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    if HAS_NORM:
        weight = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
        if PLUS_ONE:
            weight += 1.0
    if HAS_AFTER:
        of_added = tl.load(after + columns, mask=inside, other=0.0).to(tl.float32)
        if PLUS_ONE:
            of_added += 1.0
    if HAS_INNER:
        ranks = tile * TILE + tl.arange(0, TILE)
        is_there = (ranks < INNERS)[:, None] & inside[None, :]
        matrix = tl.load(lora_a + ranks[:, None] * H + columns[None, :], mask=is_there, other=0.0)
    b = 0.0
    if RANK > 0:
        b = rows_of_b(lora_b, columns, inside, H, 0, RANK, TILE)
    begin_chained(CHAINED)
    hidden = tl.load(residual + row * H + columns, mask=inside, other=0.0).to(tl.float32)
    if SPLITS > 0:
        added = whole(parts, row, columns, inside, num_rows, H + R, H, lora_b, b, lora_scale, 0, SPLITS, RANK, TILE)
        if HAS_BIAS:
            added += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_AFTER:
            added *= tl.rsqrt(tl.sum(added * added, 0) / H + eps) * of_added
        if HAS_SCALE:
            added *= added_scale
        if out_residual.dtype.element_ty == tl.float32:
            hidden += added
            if HAS_FACTOR:
                hidden *= tl.load(factor).to(tl.float32)
        else:
            hidden = (hidden + added.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
            if HAS_FACTOR:
                hidden = (hidden * tl.load(factor).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
        is_mine = inside & (tile == 0)
        tl.store(out_residual + row * H + columns, hidden.to(out_residual.dtype.element_ty), mask=is_mine)
    found = hidden
    if HAS_NORM:
        found = hidden * tl.rsqrt(tl.sum(hidden * hidden, 0) / H + eps) * weight
    found = found.to(tl.bfloat16)
    tl.store(out + place_of_x(row, columns, H, LAYOUT), found, mask=inside & (tile == 0))
    if HAS_INNER:
        product = tl.sum(matrix.to(tl.float32) * found.to(tl.float32)[None, :], 1) * inner_scale
        tl.store(inner + row * INNERS + ranks, product, mask=ranks < INNERS)


@triton.jit
def activation(x, slopes, KIND: tl.constexpr):
    """Of float32. KIND: of `ACTIVATIONS` in triton_step.py; slopes: of xIELU, as in `step_weights.Gate`."""
    if KIND == "silu":
        found = x / (1.0 + tl.exp(-x))
    elif KIND == "gelu_pytorch_tanh":  # x / 2 * (1 + tanh(y)) = x * sigmoid(2 y)
        found = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif KIND == "relu2":
        found = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    else:
        beta = tl.load(slopes + 2)
        below = (tl.exp(tl.minimum(x, tl.load(slopes + 3))) - 1.0 - x) * tl.load(slopes + 1)
        found = tl.where(x > 0, tl.load(slopes) * x * x, below) + beta * x
    return found


@triton.jit
def activate(
    parts,
    bias,
    lora_b,
    slopes,
    out,
    num_rows,
    width,
    R,
    lora_scale,
    KIND: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UP: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LAYOUT: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """activation(gate) * up from a projection of both, [M, width] in bfloat16, or activation(up) without a gate; for
    layers with adapters. UP: the matrix that `up` belongs to; 0 if one computes both."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, of_up = columns < width, columns + width
    N = width
    if HAS_GATE:
        N = 2 * width
    b_of_gate = 0.0
    b_of_up = 0.0
    if RANK > 0:
        b_of_gate = rows_of_b(lora_b, columns, inside, N, 0, RANK, RANKS)
        if HAS_GATE:
            b_of_up = rows_of_b(lora_b, of_up, inside, N, 0, RANK, RANKS)
    begin_chained(CHAINED)
    gate = whole_tile(parts, rows, columns, inside, num_rows, N + R, N, lora_b, b_of_gate, lora_scale, 0, SPLITS, RANK)
    if HAS_BIAS:
        gate += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    gate = gate.to(tl.bfloat16).to(tl.float32)
    found = activation(gate, slopes, KIND).to(tl.bfloat16)
    if HAS_GATE:
        up = whole_tile(parts, rows, of_up, inside, num_rows, N + R, N, lora_b, b_of_up, lora_scale, UP, SPLITS, RANK)
        if HAS_BIAS:
            up += tl.load(bias + width + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        found = (found.to(tl.float32) * up.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16)
    place = place_of_x(rows[:, None], columns[None, :], width, LAYOUT)
    tl.store(out + place, found, mask=(rows < num_rows)[:, None] & inside[None, :])


@triton.jit
def whole_norms(
    parts,
    bias,
    lora_b,
    factors,
    num_rows,
    N,
    R,
    queries,
    keys,
    lora_scale,
    eps,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    FUSED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """What the norm over all heads multiplies queries and keys by, [M, 2] float32. queries, keys: their widths."""
    row, side = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    width = tl.where(side == 0, queries, keys)
    inside = columns < width
    at = columns + side * queries
    segment = 0
    if not FUSED:
        segment = side
    b = 0.0
    if RANK > 0:
        b = rows_of_b(lora_b, at, inside, N, 0, RANK, TILE)
    begin_chained(CHAINED)
    found = whole(parts, row, at, inside, num_rows, N + R, N, lora_b, b, lora_scale, segment, SPLITS, RANK, TILE)
    if HAS_BIAS:
        found += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    found = found.to(tl.bfloat16).to(tl.float32)
    tl.store(factors + row * 2 + side, tl.rsqrt(tl.sum(found * found, 0) / width + eps))
