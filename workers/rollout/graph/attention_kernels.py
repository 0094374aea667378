"""Triton kernels for the attention of a decode step, over caches of slots or of pages."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import triton
import triton.language as tl

from workers.rollout.graph.kernel_parts import begin_chained, capped, is_last_of, place_of_x, sum_of


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
def _turns(
    rope,
    position,
    rope_length,
    WIDTH: tl.constexpr,
    ROTATED: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """How a head's lanes are rotated, [WIDTH] each: what a lane is multiplied by, what its partner is, and which lane
    that is. Only the first ROTATED lanes are rotated; without a rope all three are unused."""
    lanes = tl.arange(0, WIDTH)
    cos, sin, partner = lanes.to(tl.float32), lanes.to(tl.float32), lanes
    if HAS_ROPE:
        half: tl.constexpr = ROTATED // 2
        is_first, pair = lanes < half, lanes % half
        partner = tl.where(is_first, lanes + half, lanes - half)
        if INTERLEAVED:
            is_first, pair, partner = lanes % 2 == 0, lanes // 2, lanes ^ 1
        is_rotated = lanes < ROTATED
        partner = tl.where(is_rotated, partner, lanes)
        cos = tl.load(rope + position * ROTATED + pair, mask=is_rotated, other=1.0).to(tl.float32)
        sin = tl.load(rope + (rope_length + position) * ROTATED + pair, mask=is_rotated, other=0.0).to(tl.float32)
        sin = tl.where(is_first, -sin, sin)
    return cos, sin, partner


@triton.jit
def _norm_weights(
    q_norm,
    k_norm,
    key_head,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MEMBERS: tl.constexpr,
    NORM: tl.constexpr,
    PLUS_ONE: tl.constexpr,
):
    """Of what `_group_of` norms, [MEMBERS, WIDTH] or a shape that broadcasts to it; without a norm unused."""
    group: tl.constexpr = HEADS // KEY_HEADS
    members, lanes = tl.arange(0, MEMBERS)[:, None], tl.arange(0, WIDTH)[None, :]
    found = lanes.to(tl.float32)
    if NORM != "":
        of_query, of_key = lanes, lanes
        if NORM == "whole":
            of_query, of_key = (key_head * group + members) * DIM + lanes, key_head * DIM + lanes
        q = tl.load(q_norm + of_query, mask=(lanes < DIM) & (of_query < HEADS * DIM), other=0.0)
        k = tl.load(k_norm + of_key, mask=lanes < DIM, other=0.0)
        found = tl.where(members < group, q.to(tl.float32), k.to(tl.float32))
        if PLUS_ONE:
            found += 1.0
    return found


@triton.jit
def _group_of(
    parts,
    bias,
    lora_b,
    factors,
    row,
    key_head,
    position,
    is_used,
    has_new,
    cos,
    sin,
    partner,
    of_norms,
    num_rows,
    N,
    R,
    lora_scale,
    eps,
    growth,
    original,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MEMBERS: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    NORM: tl.constexpr,
    HAS_VALUE_NORM: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    FUSED: tl.constexpr,
    GROWS: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """What a row's token has for one head of keys, [MEMBERS, WIDTH] in bfloat16: the queries of this head, normed and
    rotated, then its key, normed and rotated, then its value; the last two only if `has_new`, or else zeros. Reads
    nothing unless `is_used`."""
    group: tl.constexpr = HEADS // KEY_HEADS
    of_values: tl.constexpr = 0 if VALUES_ARE_KEYS else 1
    members, lanes = tl.arange(0, MEMBERS)[:, None], tl.arange(0, WIDTH)[None, :]
    is_query, is_key, is_value = members < group, members == group, members == group + 1
    of_new = HEADS + key_head + tl.where(is_value, of_values * KEY_HEADS, 0)
    columns = tl.where(is_query, key_head * group + members, of_new) * DIM + lanes
    is_there = (is_query | ((is_key | is_value) & has_new)) & is_used
    inside = is_there & (lanes < DIM)
    segment = tl.where(is_query | FUSED, 0, tl.where(is_value, 1 + of_values, 1))
    x = sum_of(parts, row, columns, inside, num_rows, N + R, SPLITS)
    if RANK > 0:
        added = tl.zeros((MEMBERS, WIDTH), tl.float32)
        for rank in tl.static_range(RANK):
            t = sum_of(parts + N, row, segment * RANK + rank, is_there, num_rows, N + R, SPLITS)
            added += t * tl.load(lora_b + rank * N + columns, mask=inside, other=0.0).to(tl.float32)
        x += added * lora_scale
    if HAS_BIAS:
        x += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    x = x.to(tl.bfloat16).to(tl.float32)
    value = x
    if (NORM == "head") or HAS_VALUE_NORM:
        shrink = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
    if HAS_VALUE_NORM:
        value *= shrink
    if NORM != "":
        if NORM == "whole":
            shrink = tl.load(factors + row * 2 + tl.where(is_query, 0, 1))
        x = (x * (shrink * of_norms)).to(tl.bfloat16).to(tl.float32)
    if HAS_ROPE:
        partners = tl.gather(x, tl.broadcast_to(partner[None, :], x.shape), 1)
        # Written out, so that every kernel rounds alike: the compiler may fuse either product with the sum.
        x = tl.fma(x, tl.broadcast_to(cos[None, :], x.shape), partners * sin[None, :])
    if GROWS:
        x = tl.where(is_query, x * (1.0 + growth * tl.log(1.0 + tl.floor(position.to(tl.float32) / original))), x)
    return tl.where(is_value, value, x).to(tl.bfloat16)


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
    WIDTH: tl.constexpr,
    MEMBERS: tl.constexpr,
    ROTATED: tl.constexpr,
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
    """Norms and rotates queries, [M, HEADS, DIM]; writes normed and rotated keys, and values, into the caches. For
    steps in which `attend` cannot do so itself; with its arguments."""
    row, key_head = tl.program_id(0), tl.program_id(1)
    group: tl.constexpr = HEADS // KEY_HEADS
    position = tl.load(positions + row)
    cos, sin, partner = _turns(rope, position, rope_length, WIDTH, ROTATED, HAS_ROPE, INTERLEAVED)
    of_norms = _norm_weights(q_norm, k_norm, key_head, HEADS, KEY_HEADS, DIM, WIDTH, MEMBERS, NORM, PLUS_ONE)
    begin_chained(CHAINED)
    x = _group_of(
        parts,
        bias,
        lora_b,
        factors,
        row,
        key_head,
        position,
        True,
        True,
        cos,
        sin,
        partner,
        of_norms,
        num_rows,
        N,
        R,
        lora_scale,
        eps,
        growth,
        original,
        HEADS,
        KEY_HEADS,
        DIM,
        WIDTH,
        MEMBERS,
        HAS_ROPE,
        NORM,
        HAS_VALUE_NORM,
        VALUES_ARE_KEYS,
        FUSED,
        GROWS,
        SPLITS,
        RANK,
        HAS_BIAS,
    )
    members, lanes = tl.arange(0, MEMBERS)[:, None], tl.arange(0, WIDTH)[None, :]
    at = (row * HEADS + key_head * group + members) * DIM + lanes
    tl.store(query + at, x, mask=(members < group) & (lanes < DIM))
    place = _place_of(row, key_head, position, table, cache_length, KEY_HEADS, PAGE) * DIM + lanes + members * 0
    tl.store(keys + place, x, mask=(members == group) & (lanes < DIM))
    tl.store(values + place, x, mask=(members == group + 1) & (lanes < DIM))


@triton.jit
def _keys_and_values(
    keys,
    values,
    table,
    row,
    key_head,
    at,
    end,
    cache_length,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Of the tokens from `at` on that lie before `end`, [WIDTH, BLOCK] and [BLOCK, WIDTH]; zeros for the others."""
    lanes = tl.arange(0, WIDTH)
    places = at + tl.arange(0, BLOCK)
    inside = places < end
    is_key, is_value = inside[None, :], inside[:, None]
    if DIM != WIDTH:
        is_key, is_value = is_key & (lanes < DIM)[:, None], is_value & (lanes < DIM)[None, :]
    if PAGE == 0:
        offset = ((row * KEY_HEADS + key_head).to(tl.int64) * cache_length + places) * DIM
    elif WINDOW == 0:
        # A block that begins behind the cache has no page, and no token either: the row's last page will do.
        first = tl.minimum(at, cache_length - BLOCK)
        offset = (_place_of(row, key_head, first, table, cache_length, KEY_HEADS, PAGE) + tl.arange(0, BLOCK)) * DIM
    else:  # windows begin anywhere, so a block may lie in two pages
        page = tl.load(table + row * (cache_length // PAGE) + places // PAGE, mask=inside, other=0)
        offset = ((page * KEY_HEADS + key_head).to(tl.int64) * PAGE + places % PAGE) * DIM
    k = tl.load(keys + offset[None, :] + lanes[:, None], mask=is_key, other=0.0)
    v = tl.load(values + offset[:, None] + lanes[None, :], mask=is_value, other=0.0)
    return k, v


@triton.jit
def _attended(q, k, v, at, end, top, total, acc, scale, cap, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr):
    """The largest scores, the sums of weights and of weighted values, [GROUP], [GROUP] and [GROUP, WIDTH], with these
    keys and values too."""
    inside = at + tl.arange(0, BLOCK) < end
    scores = tl.dot(q, k) * scale
    if HAS_CAP:
        scores = capped(scores, cap)
    scores = tl.where(inside[None, :], scores, -1e30)
    above = tl.maximum(top, tl.max(scores, 1))
    shrink = tl.exp(top - above)
    weights = tl.where(inside[None, :], tl.exp(scores - above[:, None]), 0.0)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), v)
    return above, total, acc


@triton.jit
def attend(
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
    together,
    tops,
    sums,
    mixed,
    arrivals,
    out,
    num_rows,
    N,
    R,
    rope_length,
    cache_length,
    lora_scale,
    eps,
    growth,
    original,
    scale,
    cap,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MEMBERS: tl.constexpr,
    GROUP: tl.constexpr,
    ROTATED: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    NORM: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    HAS_VALUE_NORM: tl.constexpr,
    VALUES_ARE_KEYS: tl.constexpr,
    FUSED: tl.constexpr,
    GROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PORTIONS: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    LAYOUT: tl.constexpr,
    ROTATES: tl.constexpr,
    AHEAD: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Attention of one token per row over the keys up to its position, or the last WINDOW of them, [M, HEADS * DIM] in
    bfloat16. parts: of the projection to queries, keys and values, in SPLITS. keys, values: caches [slots, KEY_HEADS,
    T, DIM], or if PAGE is not 0 [pages, KEY_HEADS, PAGE, DIM], with PAGE a multiple of BLOCK; table: the pages of each
    slot.

    Each program handles one of PORTIONS of a row's keys for one of KEY_HEADS, and the last of them to end combines
    them, always in the same order. arrivals: [M * KEY_HEADS], zeros.

    ROTATES: every program norms and rotates its queries itself, and the one whose portion ends with the row's own
    token makes its key and value, and writes them into the caches: none reads there what this launch writes. Otherwise
    `rope_write` has done so, and `query` is [M, HEADS, DIM]. AHEAD: the first keys and values are read before the
    kernels that run are done; only with ROTATES, where they are from earlier steps.

    SHARED: portions that `attend_together` has made of the row's first together[row] keys, a multiple of BLOCK; the
    programs here share the others, and are several. 0: it has not run, and `together` is not read.

    WIDTH: lanes of a head, of which the first DIM are there, and the first ROTATED are rotated. MEMBERS: the heads of
    queries for a head of keys and two more, as a power of two; GROUP: the same, but as many as the tensor cores need.
    NORM: "", "head" or "whole", whose factors `whole_norms` made. FUSED: one matrix computes all.
    """
    row, key_head, portion = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // KEY_HEADS
    lanes = tl.arange(0, WIDTH)
    is_lane = lanes < DIM
    position = tl.load(positions + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(position + 1 - WINDOW, 0)
    if SHARED > 0:
        first = tl.load(together + row)
    size = tl.cdiv(tl.cdiv(position + 1 - first, PORTIONS), BLOCK) * BLOCK
    begin = first + portion * size
    end = tl.minimum(begin + size, position)
    has_new = (begin <= position) & (position < begin + size)
    members = tl.arange(0, MEMBERS)[:, None]
    is_query, is_new_key, is_new_value = members < group, members == group, members == group + 1
    of_query = (row * HEADS + key_head * group + members) * DIM + lanes[None, :]
    of_new = _place_of(row, key_head, position, table, cache_length, KEY_HEADS, PAGE) * DIM + lanes[None, :]
    of_new += members * 0
    if ROTATES:
        cos, sin, partner = _turns(rope, position, rope_length, WIDTH, ROTATED, HAS_ROPE, INTERLEAVED)
        of_norms = _norm_weights(q_norm, k_norm, key_head, HEADS, KEY_HEADS, DIM, WIDTH, MEMBERS, NORM, PLUS_ONE)
    if AHEAD:
        k, v = _keys_and_values(
            keys, values, table, row, key_head, begin, end, cache_length, KEY_HEADS, DIM, WIDTH, WINDOW, BLOCK, PAGE
        )
    begin_chained(CHAINED)
    if ROTATES:
        x = _group_of(
            parts,
            bias,
            lora_b,
            factors,
            row,
            key_head,
            position,
            begin <= position,
            has_new,
            cos,
            sin,
            partner,
            of_norms,
            num_rows,
            N,
            R,
            lora_scale,
            eps,
            growth,
            original,
            HEADS,
            KEY_HEADS,
            DIM,
            WIDTH,
            MEMBERS,
            HAS_ROPE,
            NORM,
            HAS_VALUE_NORM,
            VALUES_ARE_KEYS,
            FUSED,
            GROWS,
            SPLITS,
            RANK,
            HAS_BIAS,
        )
        tl.store(keys + of_new, x, mask=is_new_key & is_lane[None, :] & has_new)
        tl.store(values + of_new, x, mask=is_new_value & is_lane[None, :] & has_new)
    else:
        x = tl.load(query + of_query, mask=is_query & is_lane[None, :], other=0.0)
        key = tl.load(keys + of_new, mask=is_new_key & is_lane[None, :] & has_new, other=0.0)
        value = tl.load(values + of_new, mask=is_new_value & is_lane[None, :] & has_new, other=0.0)
        x = tl.where(is_new_key, key, tl.where(is_new_value, value, x))
    # All members again and again: only the first of them, the queries, have results that are stored.
    q = tl.reshape(tl.broadcast_to(x[None, :, :], (GROUP // MEMBERS, MEMBERS, WIDTH)), (GROUP, WIDTH))
    # The sums begin with the row's own token. Tensor cores add in one order, whatever layout x came in.
    own = tl.dot(q, tl.trans(q)) * scale
    if HAS_CAP:
        own = capped(own, cap)
    of_new_key = (tl.arange(0, GROUP) == group)[None, :]
    top = tl.where(has_new, tl.sum(tl.where(of_new_key, own, 0.0), 1), -1e30)
    total = tl.zeros((GROUP,), tl.float32) + tl.where(has_new, 1.0, 0.0)
    acc = tl.zeros((GROUP, WIDTH), tl.float32) + tl.sum(tl.where(is_new_value, x, 0.0).to(tl.float32), 0)[None, :]
    if AHEAD:
        top, total, acc = _attended(q, k, v, begin, end, top, total, acc, scale, cap, HAS_CAP, BLOCK)
        begin += BLOCK
    for at in range(begin, end, BLOCK):
        k, v = _keys_and_values(
            keys, values, table, row, key_head, at, end, cache_length, KEY_HEADS, DIM, WIDTH, WINDOW, BLOCK, PAGE
        )
        top, total, acc = _attended(q, k, v, at, end, top, total, acc, scale, cap, HAS_CAP, BLOCK)
    of_group = key_head * group + tl.arange(0, GROUP)
    is_real = tl.arange(0, GROUP) < group
    is_real_lane = is_real[:, None] & is_lane[None, :]
    if PORTIONS == 1:
        columns = of_group[:, None] * DIM + lanes[None, :]
        found = (acc / total[:, None]).to(tl.bfloat16)
        tl.store(out + place_of_x(row, columns, HEADS * DIM, LAYOUT, DIM % 8 == 0), found, mask=is_real_lane)
    else:
        place = (row * HEADS + of_group) * (PORTIONS + SHARED) + portion
        tl.store(tops + place, top, mask=is_real)
        tl.store(sums + place, total, mask=is_real)
        tl.store(mixed + place[:, None] * DIM + lanes[None, :], acc, mask=is_real_lane)
        if is_last_of(arrivals, row * KEY_HEADS + key_head, PORTIONS):
            has_shared = True
            if SHARED > 0:
                has_shared = first > 0
            _combine(
                tops,
                sums,
                mixed,
                out,
                row,
                key_head,
                has_shared,
                HEADS,
                KEY_HEADS,
                DIM,
                WIDTH,
                MEMBERS,
                PORTIONS,
                SHARED,
                LAYOUT,
            )


@triton.jit
def attend_together(
    query,
    keys,
    values,
    table,
    together,
    teams,
    tops,
    sums,
    mixed,
    cache_length,
    scale,
    cap,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PACK: tl.constexpr,
    TEAM: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PORTIONS: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Attention of rows that begin alike over the keys that they share, which are read once for all of them; `attend`,
    whose arguments these are, does the rest (Juravsky et al. 2024, "Hydragen", arXiv 2402.05099).

    Each program handles one team, one of KEY_HEADS, and one of SHARED portions of the team's keys.

    together: [slots], how many keys a row's team shares; teams: [slots, TEAM], the rows of the team that a row leads,
    and -1 behind them. PACK: queries for a head of keys, as a power of two.
    """
    row, key_head, portion = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // KEY_HEADS
    begin_chained(CHAINED)
    if tl.load(teams + row * TEAM) >= 0:
        places, lanes = tl.arange(0, TEAM * PACK), tl.arange(0, WIDTH)
        member, number = tl.load(teams + row * TEAM + places // PACK), places % PACK
        is_real = (member >= 0) & (number < group)
        is_real_lane = is_real[:, None] & (lanes < DIM)[None, :]
        head = member * HEADS + key_head * group + number
        q = tl.load(query + head[:, None] * DIM + lanes[None, :], mask=is_real_lane, other=0.0)
        count = tl.load(together + row)
        size = tl.cdiv(tl.cdiv(count, SHARED), BLOCK) * BLOCK
        begin = portion * size
        end = tl.minimum(begin + size, count)
        top = tl.full((TEAM * PACK,), -1e30, tl.float32)
        total = tl.zeros((TEAM * PACK,), tl.float32)
        acc = tl.zeros((TEAM * PACK, WIDTH), tl.float32)
        for at in range(begin, end, BLOCK):
            k, v = _keys_and_values(
                keys, values, table, row, key_head, at, end, cache_length, KEY_HEADS, DIM, WIDTH, 0, BLOCK, PAGE
            )
            top, total, acc = _attended(q, k, v, at, end, top, total, acc, scale, cap, HAS_CAP, BLOCK)
        place = head * (PORTIONS + SHARED) + PORTIONS + portion
        tl.store(tops + place, top, mask=is_real)
        tl.store(sums + place, total, mask=is_real)
        tl.store(mixed + place[:, None] * DIM + lanes[None, :], acc, mask=is_real_lane)


@triton.jit
def _combine(
    tops,
    sums,
    mixed,
    out,
    row,
    key_head,
    has_shared,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MEMBERS: tl.constexpr,
    PORTIONS: tl.constexpr,
    SHARED: tl.constexpr,
    LAYOUT: tl.constexpr,
):
    """Combines the portions of a head of keys of a row; those of a team, the last SHARED, only if `has_shared`."""
    group: tl.constexpr = HEADS // KEY_HEADS
    members, lanes = tl.arange(0, MEMBERS), tl.arange(0, WIDTH)
    heads, is_head = key_head * group + members, members < group
    inside = is_head[:, None] & (lanes < DIM)[None, :]
    place = (row * HEADS + heads) * (PORTIONS + SHARED)
    best = tl.full(heads.shape, -1e30, tl.float32)
    total = tl.zeros(heads.shape, tl.float32)
    acc = tl.zeros(inside.shape, tl.float32)
    for portion in tl.static_range(PORTIONS + SHARED):  # unrolled, so that loads do not wait for each other
        is_made = is_head & (has_shared | (portion < PORTIONS))
        best = tl.maximum(best, tl.load(tops + place + portion, mask=is_made, other=-1e30, cache_modifier=".cg"))
    for portion in tl.static_range(PORTIONS + SHARED):
        at, is_made = place + portion, is_head & (has_shared | (portion < PORTIONS))
        shrink = tl.exp(tl.load(tops + at, mask=is_made, other=-1e30, cache_modifier=".cg") - best)
        total += tl.load(sums + at, mask=is_made, other=1.0, cache_modifier=".cg") * shrink
        is_there = inside & is_made[:, None]
        one = tl.load(mixed + at[:, None] * DIM + lanes[None, :], mask=is_there, other=0.0, cache_modifier=".cg")
        acc += one * shrink[:, None]
    columns = heads[:, None] * DIM + lanes[None, :]
    found = (acc / total[:, None]).to(tl.bfloat16)
    tl.store(out + place_of_x(row, columns, HEADS * DIM, LAYOUT, DIM % 8 == 0), found, mask=inside)
