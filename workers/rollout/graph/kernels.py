"""Triton kernels for one decode step, except its large products.

Sums over split K have a fixed order, so equal inputs give equal bits. A projection writes float32 parts, [splits, rows,
N + R]; the last R columns are x A^T of the adapters. The kernel that reads them also adds up the parts, the bias and
the adapters' B, so none of these needs a launch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

INNER = 16
"""Columns of x A^T that one program computes."""
INNER_COLUMNS = tl.constexpr(INNER)
BELOW_ONE = tl.constexpr(1 - 2**-23)
"""A factor that makes a float32 smaller by one or two roundings."""


@triton.jit
def _begin(CHAINED: tl.constexpr):
    """Allow the next kernel's launch, and wait for the writes of earlier kernels (`wait_for_previous` in matmul.cu).

    Before this call, read only what no chained kernel writes: weights, and the rows' positions (only `draw` moves
    them).
    """
    if CHAINED:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


@triton.jit
def _place(row, columns, K, FRAGMENTS: tl.constexpr):
    """Address of x[row, columns]: in rows of K, or in the layout of the CUDA products (`place` in matmul.cu)."""
    if FRAGMENTS:
        piece = ((row // 8) * ((K + 255) // 256) + columns // 256) * 8 + columns % 64 // 8
        return (piece * 32 + row % 8 * 4 + columns % 256 // 64) * 8 + columns % 8
    return row * K + columns


@triton.jit
def _whole(
    parts,
    row,
    columns,
    inside,
    num_rows,
    width,
    N,
    R,
    lora_b,
    lora_scale,
    segment,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
):
    """Sum of a projection's parts with its adapter, float32. columns: below N; segment: the matrix they belong to."""
    total = tl.zeros((columns.shape[0],), tl.float32)
    for split in tl.static_range(SPLITS):  # unrolled, so that loads do not wait for each other
        total += tl.load(parts + (split * num_rows + row) * width + columns, mask=inside, other=0.0)
    if RANK > 0:
        added = tl.zeros((columns.shape[0],), tl.float32)
        for rank in tl.static_range(RANK):
            t = 0.0
            for split in tl.static_range(SPLITS):
                t += tl.load(parts + (split * num_rows + row) * width + N + segment * RANK + rank)
            added += t * tl.load(lora_b + rank * N + columns, mask=inside, other=0.0).to(tl.float32)
        total += added * lora_scale
    return total


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
    FRAGMENTS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """residual + projection (no projection if SPLITS is 0), [M, H] in float32 or bfloat16, and its RMS norm, or itself
    without a norm, in bfloat16. The projection may be normed and scaled before, the sum scaled after.

    HAS_INNER: also inner_scale times the product of what is written to `out` with lora_a, [INNERS, H], transposed. Each
    program of a row computes all of its sums and norm, and a part of that product; the first one writes the others.
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
        ranks = tile * INNER_COLUMNS + tl.arange(0, INNER_COLUMNS)
        is_there = (ranks < INNERS)[:, None] & inside[None, :]
        matrix = tl.load(lora_a + ranks[:, None] * H + columns[None, :], mask=is_there, other=0.0).to(tl.float32)
    _begin(CHAINED)
    hidden = tl.load(residual + row * H + columns, mask=inside, other=0.0).to(tl.float32)
    if SPLITS > 0:
        added = _whole(parts, row, columns, inside, num_rows, H + R, H, R, lora_b, lora_scale, 0, SPLITS, RANK)
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
    tl.store(out + _place(row, columns, H, FRAGMENTS), found, mask=inside & (tile == 0))
    if HAS_INNER:
        product = tl.sum(matrix * found.to(tl.float32)[None, :], 1) * inner_scale
        tl.store(inner + row * INNERS + ranks, product, mask=ranks < INNERS)


@triton.jit
def _activation(x, slopes, KIND: tl.constexpr):
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
    BLOCK: tl.constexpr,
    FRAGMENTS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """activation(gate) * up from a projection of both, [M, width] in bfloat16, or activation(up) without a gate; for
    layers with adapters. UP: the matrix that `up` belongs to; 0 if one computes both."""
    _begin(CHAINED)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    N = width
    if HAS_GATE:
        N = 2 * width
    gate = _whole(parts, row, columns, inside, num_rows, N + R, N, R, lora_b, lora_scale, 0, SPLITS, RANK)
    if HAS_BIAS:
        gate += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    gate = gate.to(tl.bfloat16).to(tl.float32)
    found = _activation(gate, slopes, KIND).to(tl.bfloat16)
    if HAS_GATE:
        up = _whole(parts, row, columns + width, inside, num_rows, N + R, N, R, lora_b, lora_scale, UP, SPLITS, RANK)
        if HAS_BIAS:
            up += tl.load(bias + width + columns, mask=inside, other=0.0).to(tl.float32)
        found = (found.to(tl.float32) * up.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16)
    tl.store(out + _place(row, columns, width, FRAGMENTS), found, mask=inside)


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
    CHAINED: tl.constexpr,
):
    """What the norm over all heads multiplies queries and keys by, [M, 2] float32. queries, keys: their widths."""
    _begin(CHAINED)
    row, side = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    width = tl.where(side == 0, queries, keys)
    inside = columns < width
    at = columns + side * queries
    segment = 0
    if not FUSED:
        segment = side
    found = _whole(parts, row, at, inside, num_rows, N + R, N, R, lora_b, lora_scale, segment, SPLITS, RANK)
    if HAS_BIAS:
        found += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    found = found.to(tl.bfloat16).to(tl.float32)
    tl.store(factors + row * 2 + side, tl.rsqrt(tl.sum(found * found, 0) / width + eps))


@triton.jit
def _place_of(row, key_head, position, table, cache_length, KEY_HEADS: tl.constexpr, PAGE: tl.constexpr):
    """Number of a token's vector in a cache. Only the host changes the table, between two steps."""
    if PAGE > 0:
        page = tl.load(table + row * (cache_length // PAGE) + position // PAGE)
        found = (page * KEY_HEADS + key_head).to(tl.int64) * PAGE + position % PAGE
    else:
        found = (row * KEY_HEADS + key_head).to(tl.int64) * cache_length + position
    return found


@triton.jit
def _norm_weight(q_norm, k_norm, head, lanes, inside, HEADS: tl.constexpr, IS_WHOLE: tl.constexpr, DIM, PLUS_ONE):
    """The norm's weights of a head of queries or keys."""
    at, of_keys = lanes, lanes
    if IS_WHOLE:
        at, of_keys = head * DIM + lanes, (head - HEADS) * DIM + lanes
    if head < HEADS:
        weight = tl.load(q_norm + at, mask=inside, other=0.0).to(tl.float32)
    else:
        weight = tl.load(k_norm + of_keys, mask=inside, other=0.0).to(tl.float32)
    if PLUS_ONE:
        weight += 1.0
    return weight


@triton.jit
def rope_write(
    parts,
    bias,
    lora_b,
    rope,
    positions,
    q_norm,
    k_norm,
    factors,
    query,
    keys,
    values,
    table,
    num_rows,
    N,
    R,
    rope_length,
    cache_length,
    lora_scale,
    eps,
    growth,
    original,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    NORM: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    HAS_VALUE_NORM: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    FUSED: tl.constexpr,
    GROWS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Norms and rotates queries, [M, HEADS, DIM]; writes normed and rotated keys, and values, into the caches [slots,
    KEY_HEADS, T, DIM], or if PAGE is not 0 [pages, KEY_HEADS, PAGE, DIM]. table: the pages of each slot.

    The first ROTATED dimensions of a head are rotated, in two parts of at most HALF lanes; the rest, at most REST
    lanes, is not. NORM: "", "head" or "whole", whose factors `whole_norms` made. FUSED: one matrix computes all.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = ROTATED // 2
    lanes = tl.arange(0, HALF)
    inside = lanes < half
    low, high = lanes, half + lanes  # in the head
    if INTERLEAVED:
        low, high = 2 * lanes, 2 * lanes + 1
    base = head * DIM
    if VALUES_ARE_KEYS:
        base = tl.where(head < HEADS + KEY_HEADS, head, head - KEY_HEADS) * DIM
    segment = 0
    if not FUSED:
        segment = tl.where(head < HEADS, 0, tl.where(head < HEADS + KEY_HEADS, 1, 2))
        if VALUES_ARE_KEYS:
            segment = tl.where(head < HEADS, 0, 1)
    width = N + R
    position = tl.load(positions + row)
    if HAS_ROPE:
        cos = tl.load(rope + position * ROTATED + lanes, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(rope + (rope_length + position) * ROTATED + lanes, mask=inside, other=0.0).to(tl.float32)
    _begin(CHAINED)
    first = _whole(parts, row, base + low, inside, num_rows, width, N, R, lora_b, lora_scale, segment, SPLITS, RANK)
    second = _whole(parts, row, base + high, inside, num_rows, width, N, R, lora_b, lora_scale, segment, SPLITS, RANK)
    if HAS_BIAS:
        first += tl.load(bias + base + low, mask=inside, other=0.0).to(tl.float32)
        second += tl.load(bias + base + high, mask=inside, other=0.0).to(tl.float32)
    first, second = first.to(tl.bfloat16).to(tl.float32), second.to(tl.bfloat16).to(tl.float32)
    if REST > 0:
        behind = ROTATED + tl.arange(0, REST)
        is_behind = behind < DIM
        rest = _whole(
            parts, row, base + behind, is_behind, num_rows, width, N, R, lora_b, lora_scale, segment, SPLITS, RANK
        )
        if HAS_BIAS:
            rest += tl.load(bias + base + behind, mask=is_behind, other=0.0).to(tl.float32)
        rest = rest.to(tl.bfloat16).to(tl.float32)
    if (NORM == "head") or HAS_VALUE_NORM:
        squares = tl.sum(first * first, 0) + tl.sum(second * second, 0)
        if REST > 0:
            squares += tl.sum(rest * rest, 0)
        shrink = tl.rsqrt(squares / DIM + eps)
    IS_WHOLE: tl.constexpr = NORM == "whole"
    if NORM != "":  # noqa: SIM102  # a constant, by which the rest is not compiled
        if head < HEADS + KEY_HEADS:
            if IS_WHOLE:
                shrink = tl.load(factors + row * 2 + tl.where(head < HEADS, 0, 1))
            first *= shrink * _norm_weight(q_norm, k_norm, head, low, inside, HEADS, IS_WHOLE, DIM, PLUS_ONE)
            second *= shrink * _norm_weight(q_norm, k_norm, head, high, inside, HEADS, IS_WHOLE, DIM, PLUS_ONE)
            first, second = first.to(tl.bfloat16).to(tl.float32), second.to(tl.bfloat16).to(tl.float32)
            if REST > 0:
                rest *= shrink * _norm_weight(q_norm, k_norm, head, behind, is_behind, HEADS, IS_WHOLE, DIM, PLUS_ONE)
    if HAS_VALUE_NORM:  # noqa: SIM102
        if head >= HEADS + KEY_HEADS:
            first, second = first * shrink, second * shrink
            if REST > 0:
                rest *= shrink
    if HAS_ROPE:  # noqa: SIM102
        if head < HEADS + KEY_HEADS:
            first, second = first * cos - second * sin, second * cos + first * sin
    if GROWS:  # noqa: SIM102
        if head < HEADS:
            factor = 1.0 + growth * tl.log(1.0 + tl.floor(position.to(tl.float32) / original))
            first, second = first * factor, second * factor
            if REST > 0:
                rest *= factor
    if head < HEADS:
        place = query + (row * HEADS + head) * DIM
    elif head < HEADS + KEY_HEADS:
        place = keys + _place_of(row, head - HEADS, position, table, cache_length, KEY_HEADS, PAGE) * DIM
    else:
        place = values + _place_of(row, head - HEADS - KEY_HEADS, position, table, cache_length, KEY_HEADS, PAGE) * DIM
    tl.store(place + low, first.to(tl.bfloat16), mask=inside)
    tl.store(place + high, second.to(tl.bfloat16), mask=inside)
    if REST > 0:
        tl.store(place + behind, rest.to(tl.bfloat16), mask=is_behind)


@triton.jit
def _capped(x, cap):
    """cap * tanh(x / cap)"""
    return cap * (1.0 - 2.0 / (tl.exp(x * (2.0 / cap)) + 1.0))


@triton.jit
def attend(
    query,
    keys,
    values,
    table,
    positions,
    tops,
    sums,
    mixed,
    scale,
    cap,
    cache_length,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Attention of one token per row over the keys up to its position, or the last WINDOW of them; each split handles
    its portion of them. WIDTH: lanes of a head, of which DIM are there. PAGE: as for `rope_write`, a multiple of BLOCK.
    """
    row, key_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // KEY_HEADS
    members = tl.arange(0, GROUP)
    dims = tl.arange(0, WIDTH)
    heads = key_head * group + members
    real = members < group
    length = tl.load(positions + row) + 1
    _begin(CHAINED)
    is_query, is_dim = real[:, None], dims < DIM
    if DIM != WIDTH:
        is_query = is_query & is_dim[None, :]
    q = tl.load(query + (row * HEADS + heads[:, None]) * DIM + dims[None, :], mask=is_query, other=0.0)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    portion = tl.cdiv(tl.cdiv(length - first, SPLITS), BLOCK) * BLOCK
    begin = first + split * portion
    end = tl.minimum(begin + portion, length)
    base = (row * KEY_HEADS + key_head).to(tl.int64) * cache_length * DIM
    if PAGE > 0:
        base = base * 0
    top = tl.full((GROUP,), -1e30, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, WIDTH), tl.float32)
    for at in range(begin, end, BLOCK):
        places = at + tl.arange(0, BLOCK)
        inside = places < end
        is_key, is_value = inside[None, :], inside[:, None]
        if DIM != WIDTH:
            is_key, is_value = is_key & is_dim[:, None], is_value & is_dim[None, :]
        if PAGE == 0:
            offset = places * DIM
        elif WINDOW == 0:
            base = _place_of(row, key_head, at, table, cache_length, KEY_HEADS, PAGE) * DIM
            offset = tl.arange(0, BLOCK) * DIM
        else:  # windows begin anywhere, so a block may lie in two pages
            page = tl.load(table + row * (cache_length // PAGE) + places // PAGE, mask=inside, other=0)
            offset = ((page * KEY_HEADS + key_head).to(tl.int64) * PAGE + places % PAGE) * DIM
        k = tl.load(keys + base + offset[None, :] + dims[:, None], mask=is_key, other=0.0)
        scores = tl.dot(q, k) * scale
        if HAS_CAP:
            scores = _capped(scores, cap)
        scores = tl.where(inside[None, :], scores, -1e30)
        above = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - above)
        weights = tl.where(inside[None, :], tl.exp(scores - above[:, None]), 0.0)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(values + base + offset[:, None] + dims[None, :], mask=is_value, other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), v)
        top = above
    place = (row * HEADS + heads) * SPLITS + split
    tl.store(tops + place, top, mask=real)
    tl.store(sums + place, total, mask=real)
    tl.store(mixed + place[:, None] * DIM + dims[None, :], acc, mask=is_query)


@triton.jit
def combine(
    tops,
    sums,
    mixed,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    FRAGMENTS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Combines the splits of each (row, head), [M, HEADS * DIM] in bfloat16."""
    _begin(CHAINED)
    place = tl.program_id(0)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    inside = dims < DIM
    top = tl.load(tops + place * SPLITS + splits)
    shrink = tl.exp(top - tl.max(top, 0))
    total = tl.sum(tl.load(sums + place * SPLITS + splits) * shrink, 0)
    acc = tl.load(mixed + (place * SPLITS + splits[:, None]) * DIM + dims[None, :], mask=inside[None, :], other=0.0)
    found = tl.sum(acc * shrink[:, None], 0) / total
    columns = place % HEADS * DIM + dims
    tl.store(out + _place(place // HEADS, columns, HEADS * DIM, FRAGMENTS), found.to(tl.bfloat16), mask=inside)


@triton.jit
def _shaped(z, scale, cap, HAS_SCALE: tl.constexpr, HAS_CAP: tl.constexpr):
    """cap(scale * logits), float32."""
    if HAS_SCALE:
        z = z * scale
    if HAS_CAP:
        z = _capped(z, cap)
    return z


@triton.jit
def vocabulary_tiles(
    logits,
    temperature,
    tops,
    sums,
    inner,
    arg,
    V,
    STRIDE,
    NUM_TILES,
    scale,
    cap,
    HAS_SCALE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    TILE: tl.constexpr,
):
    """For a tile of a row's logits: maximum, sum of exp(z - max), that sum weighted by z, and index of the maximum."""
    row, tile = tl.program_id(0), tl.program_id(1)
    columns = tile * TILE + tl.arange(0, TILE)
    inside = columns < V
    z = tl.load(logits + row.to(tl.int64) * STRIDE + columns, mask=inside, other=0.0).to(tl.float32)
    z = tl.where(inside, _shaped(z, scale, cap, HAS_SCALE, HAS_CAP) / tl.load(temperature), -1e30)
    top = tl.max(z, 0)
    exp = tl.where(inside, tl.exp(z - top), 0.0)
    place = row * NUM_TILES + tile
    tl.store(tops + place, top)
    tl.store(sums + place, tl.sum(exp, 0))
    tl.store(inner + place, tl.sum(exp * z, 0))
    tl.store(arg + place, tile * TILE + tl.argmax(z, 0))


@triton.jit
def draw(
    logits,
    temperature,
    tops,
    sums,
    inner,
    arg,
    uniforms,
    limit,
    greedy,
    stop_ids,
    tokens,
    positions,
    counts,
    active,
    out_ids,
    out_log_probs,
    out_entropies,
    V,
    STRIDE,
    NUM_TILES,
    room,
    scale,
    cap,
    HAS_SCALE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    STOPS: tl.constexpr,
):
    """Draws each active row's next token, stores it, makes it the next input, and checks whether it ends the row."""
    row = tl.program_id(0)
    if tl.load(active + row) != 0:
        numbers = tl.arange(0, TILES)
        known = numbers < NUM_TILES
        base = row * NUM_TILES
        top = tl.load(tops + base + numbers, mask=known, other=-1e30)
        best = tl.max(top, 0)
        shrink = tl.exp(top - best)
        mass = tl.load(sums + base + numbers, mask=known, other=0.0) * shrink
        total = tl.sum(mass, 0)
        lse = best + tl.log(total)
        entropy = lse - tl.sum(tl.load(inner + base + numbers, mask=known, other=0.0) * shrink, 0) / total
        count = tl.load(counts + row)
        uniform = tl.load(uniforms + row * room + count)
        passed = tl.cumsum(mass, 0) / total
        # A sum in another order may round below the uniform number; a token without probability mass is never chosen.
        uniform = tl.minimum(uniform, tl.max(passed, 0) * BELOW_ONE)
        tile = tl.minimum(tl.sum(((passed <= uniform) & known).to(tl.int32), 0), NUM_TILES - 1)
        before = tl.sum(tl.where(numbers < tile, mass, 0.0), 0) / total
        columns = tile * TILE + tl.arange(0, TILE)
        inside = columns < V
        line = logits + row.to(tl.int64) * STRIDE
        heat = tl.load(temperature)
        z = (
            _shaped(tl.load(line + columns, mask=inside, other=0.0).to(tl.float32), scale, cap, HAS_SCALE, HAS_CAP)
            / heat
        )
        p = tl.where(inside, tl.exp(z - lse), 0.0)
        reached = before + tl.cumsum(p, 0)
        below = (reached <= tl.minimum(uniform, tl.max(reached, 0) * BELOW_ONE)) & inside
        token = tl.minimum(tile * TILE + tl.minimum(tl.sum(below.to(tl.int32), 0), TILE - 1), V - 1)
        if tl.load(greedy) != 0:
            first = tl.min(tl.where(known & (top == best), numbers, TILES), 0)
            # With NaN everywhere there is no maximum, so take any token; its log-prob is NaN.
            token = tl.minimum(tl.load(arg + base + tl.minimum(first, NUM_TILES - 1)), V - 1)
        log_prob = _shaped(tl.load(line + token).to(tl.float32), scale, cap, HAS_SCALE, HAS_CAP) / heat - lse
        place = row * room + count
        tl.store(out_ids + place, token)
        tl.store(out_log_probs + place, log_prob)
        tl.store(out_entropies + place, entropy)
        tl.store(tokens + row, token)
        tl.store(counts + row, count + 1)
        tl.store(positions + row, tl.load(positions + row) + 1)
        stops = tl.load(stop_ids + tl.arange(0, STOPS))
        is_last = (tl.sum((stops == token).to(tl.int32), 0) > 0) | (count + 1 >= tl.load(limit))
        tl.store(active + row, tl.where(is_last, 0, 1))
