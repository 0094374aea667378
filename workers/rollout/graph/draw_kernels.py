"""Triton kernels for the draw of a decode step."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import triton
import triton.language as tl

from workers.rollout.graph.kernel_parts import capped, is_last_of

BELOW_ONE = tl.constexpr(1 - 2**-23)
"""A factor that makes a float32 smaller by one or two roundings."""


@triton.jit
def _shaped(z, scale, cap, HAS_SCALE: tl.constexpr, HAS_CAP: tl.constexpr):
    """cap(scale * logits), float32."""
    if HAS_SCALE:
        z = z * scale
    if HAS_CAP:
        z = capped(z, cap)
    return z


@triton.jit
def draw(
    logits,
    temperature,
    tops,
    sums,
    inner,
    arg,
    arrivals,
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
    room,
    scale,
    cap,
    HAS_SCALE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    NUM_TILES: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    STOPS: tl.constexpr,
):
    """Draws each active row's next token, stores it, makes it the next input, and checks whether it ends the row.

    Each program handles a tile of a row's logits: maximum, sum of exp(z - max), that sum weighted by z, and index of
    the maximum. The last of them to end draws. arrivals: [M], zeros. TILES: a power of two, at least NUM_TILES.
    """
    row, tile = tl.program_id(0), tl.program_id(1)
    if tl.load(active + row) != 0:  # only the last program of the row changes it
        line = logits + row.to(tl.int64) * STRIDE
        heat = tl.load(temperature)
        columns = tile * TILE + tl.arange(0, TILE)
        inside = columns < V
        z = tl.load(line + columns, mask=inside, other=0.0).to(tl.float32)
        z = tl.where(inside, _shaped(z, scale, cap, HAS_SCALE, HAS_CAP) / heat, -1e30)
        top = tl.max(z, 0)
        exp = tl.where(inside, tl.exp(z - top), 0.0)
        base = row * NUM_TILES
        tl.store(tops + base + tile, top)
        tl.store(sums + base + tile, tl.sum(exp, 0))
        tl.store(inner + base + tile, tl.sum(exp * z, 0))
        tl.store(arg + base + tile, tile * TILE + tl.argmax(z, 0))
        if is_last_of(arrivals, row, NUM_TILES):
            _draw_of_tiles(
                line,
                heat,
                tops + base,
                sums + base,
                inner + base,
                arg + base,
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
                row,
                V,
                room,
                scale,
                cap,
                HAS_SCALE,
                HAS_CAP,
                NUM_TILES,
                TILES,
                TILE,
                STOPS,
            )


@triton.jit
def _draw_of_tiles(
    line,
    heat,
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
    row,
    V,
    room,
    scale,
    cap,
    HAS_SCALE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    NUM_TILES: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    STOPS: tl.constexpr,
):
    """A row's draw, from what its tiles found."""
    numbers = tl.arange(0, TILES)
    known = numbers < NUM_TILES
    top = tl.load(tops + numbers, mask=known, other=-1e30, cache_modifier=".cg")
    best = tl.max(top, 0)
    shrink = tl.exp(top - best)
    mass = tl.load(sums + numbers, mask=known, other=0.0, cache_modifier=".cg") * shrink
    total = tl.sum(mass, 0)
    lse = best + tl.log(total)
    weighted = tl.load(inner + numbers, mask=known, other=0.0, cache_modifier=".cg") * shrink
    entropy = lse - tl.sum(weighted, 0) / total
    count = tl.load(counts + row)
    uniform = tl.load(uniforms + row * room + count)
    passed = tl.cumsum(mass, 0) / total
    # A sum in another order may round below the uniform number; a token without probability mass is never chosen.
    uniform = tl.minimum(uniform, tl.max(passed, 0) * BELOW_ONE)
    tile = tl.minimum(tl.sum(((passed <= uniform) & known).to(tl.int32), 0), NUM_TILES - 1)
    before = tl.sum(tl.where(numbers < tile, mass, 0.0), 0) / total
    columns = tile * TILE + tl.arange(0, TILE)
    inside = columns < V
    z = _shaped(tl.load(line + columns, mask=inside, other=0.0).to(tl.float32), scale, cap, HAS_SCALE, HAS_CAP) / heat
    p = tl.where(inside, tl.exp(z - lse), 0.0)
    reached = before + tl.cumsum(p, 0)
    below = (reached <= tl.minimum(uniform, tl.max(reached, 0) * BELOW_ONE)) & inside
    token = tl.minimum(tile * TILE + tl.minimum(tl.sum(below.to(tl.int32), 0), TILE - 1), V - 1)
    if tl.load(greedy) != 0:
        first = tl.min(tl.where(known & (top == best), numbers, TILES), 0)
        # With NaN everywhere there is no maximum, so take any token; its log-prob is NaN.
        found = tl.load(arg + tl.minimum(first, NUM_TILES - 1), cache_modifier=".cg")
        token = tl.minimum(found, V - 1)
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
