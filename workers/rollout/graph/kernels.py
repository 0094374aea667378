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
    lora_b,
    norm,
    out,
    out_residual,
    num_rows,
    H,
    R,
    eps,
    lora_scale,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    FRAGMENTS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """residual + projection (no projection if SPLITS is 0), [M, H] in float32 or bfloat16, and its RMS norm in
    bfloat16."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    weight = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    _begin(CHAINED)
    hidden = tl.load(residual + row * H + columns, mask=inside, other=0.0).to(tl.float32)
    if SPLITS > 0:
        added = _whole(parts, row, columns, inside, num_rows, H + R, H, R, lora_b, lora_scale, 0, SPLITS, RANK)
        if out_residual.dtype.element_ty == tl.float32:
            hidden += added
        else:
            hidden = (hidden + added.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
        tl.store(out_residual + row * H + columns, hidden.to(out_residual.dtype.element_ty), mask=inside)
    variance = tl.sum(hidden * hidden, 0) / H
    normed = hidden * tl.rsqrt(variance + eps)
    tl.store(out + _place(row, columns, H, FRAGMENTS), (normed * weight).to(tl.bfloat16), mask=inside)


@triton.jit
def activate(
    parts,
    lora_b,
    out,
    num_rows,
    width,
    R,
    lora_scale,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    FRAGMENTS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """silu(gate) * up from a projection of both, [M, width] in bfloat16; for layers with adapters."""
    _begin(CHAINED)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    N = 2 * width
    gate = _whole(parts, row, columns, inside, num_rows, N + R, N, R, lora_b, lora_scale, 0, SPLITS, RANK)
    up = _whole(parts, row, columns + width, inside, num_rows, N + R, N, R, lora_b, lora_scale, 1, SPLITS, RANK)
    gate = gate.to(tl.bfloat16).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(tl.bfloat16).to(tl.float32)
    found = (silu * up.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16)
    tl.store(out + _place(row, columns, width, FRAGMENTS), found, mask=inside)


@triton.jit
def rope_write(
    parts,
    bias,
    lora_b,
    rope,
    positions,
    query,
    keys,
    values,
    num_rows,
    N,
    R,
    rope_length,
    cache_length,
    lora_scale,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Rotates queries, [M, HEADS, DIM]; writes rotated keys, and values, into the caches [slots, KEY_HEADS, T, DIM]."""
    row, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = DIM // 2
    lanes = tl.arange(0, half)
    low, high = head * DIM + lanes, head * DIM + half + lanes
    segment = tl.where(head < HEADS, 0, tl.where(head < HEADS + KEY_HEADS, 1, 2))
    width = N + R
    everywhere = lanes < half
    position = tl.load(positions + row)
    cos = tl.load(rope + position * DIM + lanes).to(tl.float32)
    sin = tl.load(rope + (rope_length + position) * DIM + lanes).to(tl.float32)
    _begin(CHAINED)
    first = _whole(parts, row, low, everywhere, num_rows, width, N, R, lora_b, lora_scale, segment, SPLITS, RANK)
    second = _whole(parts, row, high, everywhere, num_rows, width, N, R, lora_b, lora_scale, segment, SPLITS, RANK)
    if HAS_BIAS:
        first += tl.load(bias + low).to(tl.float32)
        second += tl.load(bias + high).to(tl.float32)
    first, second = first.to(tl.bfloat16).to(tl.float32), second.to(tl.bfloat16).to(tl.float32)
    if head < HEADS + KEY_HEADS:
        first, second = first * cos - second * sin, second * cos + first * sin
    if head < HEADS:
        place = query + (row * HEADS + head) * DIM
    elif head < HEADS + KEY_HEADS:
        slot = (row * KEY_HEADS + head - HEADS).to(tl.int64)
        place = keys + (slot * cache_length + position) * DIM
    else:
        slot = (row * KEY_HEADS + head - HEADS - KEY_HEADS).to(tl.int64)
        place = values + (slot * cache_length + position) * DIM
    tl.store(place + lanes, first.to(tl.bfloat16))
    tl.store(place + half + lanes, second.to(tl.bfloat16))


@triton.jit
def attend(
    query,
    keys,
    values,
    positions,
    tops,
    sums,
    mixed,
    scale,
    cache_length,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Attention of one token per row over the keys up to its position; each split handles its portion of them."""
    row, key_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // KEY_HEADS
    members = tl.arange(0, GROUP)
    dims = tl.arange(0, DIM)
    heads = key_head * group + members
    real = members < group
    length = tl.load(positions + row) + 1
    _begin(CHAINED)
    q = tl.load(query + (row * HEADS + heads[:, None]) * DIM + dims[None, :], mask=real[:, None], other=0.0)
    portion = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    begin = split * portion
    end = tl.minimum(begin + portion, length)
    base = (row * KEY_HEADS + key_head).to(tl.int64) * cache_length * DIM
    top = tl.full((GROUP,), -1e30, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, DIM), tl.float32)
    for at in range(begin, end, BLOCK):
        places = at + tl.arange(0, BLOCK)
        inside = places < end
        k = tl.load(keys + base + places[None, :] * DIM + dims[:, None], mask=inside[None, :], other=0.0)
        scores = tl.where(inside[None, :], tl.dot(q, k) * scale, -1e30)
        above = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - above)
        weights = tl.where(inside[None, :], tl.exp(scores - above[:, None]), 0.0)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(values + base + places[:, None] * DIM + dims[None, :], mask=inside[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), v)
        top = above
    place = (row * HEADS + heads) * SPLITS + split
    tl.store(tops + place, top, mask=real)
    tl.store(sums + place, total, mask=real)
    tl.store(mixed + place[:, None] * DIM + dims[None, :], acc, mask=real[:, None])


@triton.jit
def combine(
    tops,
    sums,
    mixed,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    FRAGMENTS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Combines the splits of each (row, head), [M, HEADS * DIM] in bfloat16."""
    _begin(CHAINED)
    place = tl.program_id(0)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
    top = tl.load(tops + place * SPLITS + splits)
    shrink = tl.exp(top - tl.max(top, 0))
    total = tl.sum(tl.load(sums + place * SPLITS + splits) * shrink, 0)
    acc = tl.load(mixed + (place * SPLITS + splits[:, None]) * DIM + dims[None, :])
    found = tl.sum(acc * shrink[:, None], 0) / total
    columns = place % HEADS * DIM + dims
    tl.store(out + _place(place // HEADS, columns, HEADS * DIM, FRAGMENTS), found.to(tl.bfloat16))


@triton.jit
def vocabulary_tiles(logits, temperature, tops, sums, inner, arg, V, NUM_TILES, TILE: tl.constexpr):
    """For a tile of a row's logits: maximum, sum of exp(z - max), that sum weighted by z, and index of the maximum."""
    row, tile = tl.program_id(0), tl.program_id(1)
    columns = tile * TILE + tl.arange(0, TILE)
    inside = columns < V
    z = tl.load(logits + row.to(tl.int64) * V + columns, mask=inside, other=0.0).to(tl.float32)
    z = tl.where(inside, z / tl.load(temperature), -1e30)
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
    NUM_TILES,
    room,
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
        line = logits + row.to(tl.int64) * V
        heat = tl.load(temperature)
        z = tl.load(line + columns, mask=inside, other=0.0).to(tl.float32) / heat
        p = tl.where(inside, tl.exp(z - lse), 0.0)
        reached = before + tl.cumsum(p, 0)
        below = (reached <= tl.minimum(uniform, tl.max(reached, 0) * BELOW_ONE)) & inside
        token = tl.minimum(tile * TILE + tl.minimum(tl.sum(below.to(tl.int32), 0), TILE - 1), V - 1)
        if tl.load(greedy) != 0:
            first = tl.min(tl.where(known & (top == best), numbers, TILES), 0)
            # With NaN everywhere there is no maximum, so take any token; its log-prob is NaN.
            token = tl.minimum(tl.load(arg + base + tl.minimum(first, NUM_TILES - 1)), V - 1)
        log_prob = tl.load(line + token).to(tl.float32) / heat - lse
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
