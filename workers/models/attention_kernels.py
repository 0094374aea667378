"""Attention for training passes in Triton, for rows in which few tokens see each other. Import it only where Triton
runs.

A row holds several completions that do not see one another, so most blocks of queries and keys need no work. PyTorch's
kernels compute them anyway, and those that accept a mask add gradients in no fixed order. Here one program makes each
sum in a fixed order (Dao 2023, FlashAttention-2, algorithms 1 and 2, without its atomic additions). Products are of
16-bit numbers; sums and exponentials are in float32.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

Kind = dict[str, Any]
"""What a kernel is compiled for. D: width of a head in memory; WIDTH: in registers, zeros behind D; QUERIES, KEYS: of a
block; PARTS: numbers of a token in the segments; num_warps; num_stages: of the loads in its loops."""
Side = tuple[Tensor, Tensor]
"""For each block of one side, those of the other that need work, as `_listed` says."""
Lists = dict[tuple[int, int, int], tuple[Side, Side]]
"""Queries of a block, keys of a block, window -> what `_listed` finds in the segments of a pass."""
BLOCK, NARROW = 64, 32
"""Tokens in a block, of queries or of keys; of heads wider than 128, whose blocks would not fit into registers."""
PER_BIT = 1.4426950408889634
"""log2(e): exponentials are computed as powers of two."""


class Attention(torch.autograd.Function):
    """softmax(scaling * q k^T, where `packing.visible(segments, window=window)` is true) v.

    q: [R, heads, T, D], k, v: [R, key heads, T, D], 16 bits, D at most 256, last stride 1; segments: [R, 1, T, 2]
    int32, contiguous, with positions behind if there is a window. scaling: above 0. window: 0 for none. cap: scaled
    scores x become cap * tanh(x / cap); 0 for none. lists: what other layers found in the same segments, to which this
    one adds what is missing. Returns [R, T, heads, D].
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Tensor,
        scaling: float,
        window: int,
        cap: float,
        lists: Lists | None = None,
    ) -> Tensor:
        rows, heads, length, dim = q.shape
        kind, *ctx.kinds = _kinds(dim, segments.shape[-1], window, cap)
        ctx.lists = {} if lists is None else lists
        with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]  # a kernel runs on the current device
            of_queries, _ = _sides(ctx.lists, segments, kind)
            out = q.new_empty(rows, length, heads, dim)
            logs = q.new_empty(rows, heads, length, dtype=torch.float32)
            _attention[(triton.cdiv(length, kind["QUERIES"]), heads, rows)](
                q,
                k,
                v,
                segments,
                *of_queries,
                out,
                logs,
                *_strides(q, k, v),
                length,
                heads,
                heads // k.shape[1],
                scaling * PER_BIT,
                cap * PER_BIT,
                **kind,
            )
        ctx.save_for_backward(q, k, v, out, logs, segments)
        ctx.scaling, ctx.cap = scaling, cap
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, logs, segments = ctx.saved_tensors
        rows, heads, length, dim = q.shape
        key_heads = k.shape[1]
        grad = grad.contiguous()
        of_q, dots = torch.empty_like(q), torch.empty_like(logs)
        # One gradient for each query head; the heads that share a key head are summed below.
        of_k, of_v = (q.new_empty(rows, length, heads, dim, dtype=torch.float32) for _ in range(2))
        common = length, heads, heads // key_heads, ctx.scaling * PER_BIT, ctx.scaling, ctx.cap * PER_BIT
        kind, kind_of_keys = ctx.kinds
        with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
            of_queries, _ = _sides(ctx.lists, segments, kind)
            _, of_keys = _sides(ctx.lists, segments, kind_of_keys)
            _attention_queries[(triton.cdiv(length, kind["QUERIES"]), heads, rows)](
                q,
                k,
                v,
                segments,
                *of_queries,
                out,
                grad,
                logs,
                dots,
                of_q,
                *_strides(q, k, v, of_q),
                *common,
                **kind,
            )
            _attention_keys[(triton.cdiv(length, kind_of_keys["KEYS"]), heads, rows)](
                q,
                k,
                v,
                segments,
                *of_keys,
                grad,
                logs,
                dots,
                of_k,
                of_v,
                *_strides(q, k, v),
                *common,
                **kind_of_keys,
            )
        shared = rows, length, key_heads, heads // key_heads, dim
        of_k, of_v = (one.view(shared).sum(3).to(k.dtype).transpose(1, 2) for one in (of_k, of_v))
        return of_q, of_k, of_v, None, None, None, None, None


def _kinds(dim: int, parts: int, window: int, cap: float) -> tuple[Kind, Kind, Kind]:
    """Of the kernels of the result, of the queries' gradient, and of that of keys and values."""
    width = max(16, triton.next_power_of_2(dim))
    size = BLOCK if width <= 128 else NARROW
    warps = 8 if width > 128 or cap else 4  # with fewer, registers spill
    kind = {"D": dim, "WIDTH": width, "QUERIES": size, "KEYS": size, "PARTS": parts, "WINDOW": window}
    kind |= {"HAS_CAP": cap != 0.0, "num_warps": warps, "num_stages": 2}
    return kind, kind, kind


def _strides(*tensors: Tensor) -> list[int]:
    """Strides of rows, heads and tokens."""
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def _sides(lists: Lists, segments: Tensor, kind: Kind) -> tuple[Side, Side]:
    key = kind["QUERIES"], kind["KEYS"], kind["WINDOW"]
    if key not in lists:
        lists[key] = _listed(segments, *key)
    return lists[key]


def _listed(segments: Tensor, queries: int, keys: int, window: int) -> tuple[Side, Side]:
    """The blocks that need work: for each block of queries, the blocks of keys with a visible token; and for each block
    of keys, the blocks of queries that see any of it.

    Of either side, lists: [R, its blocks, the other's blocks], block numbers, first those of which every token sees
    every other, in rising order, then the rest, in rising order; counts: [R, its blocks, 2], how many are of the first
    kind, and how many there are.
    """
    rows, _, length, _ = segments.shape
    lines, columns = triton.cdiv(length, queries), triton.cdiv(length, keys)
    flags = torch.empty(rows, lines, columns, dtype=torch.uint8, device=segments.device)
    kind = {"QUERIES": queries, "KEYS": keys, "PARTS": segments.shape[-1], "WINDOW": window}
    _attention_flags[(columns, lines, rows)](segments, flags, length, **kind, num_warps=4)
    return _side(flags, lines, columns, (columns, 1)), _side(flags, columns, lines, (1, columns))


def _side(flags: Tensor, blocks: int, others: int, strides: tuple[int, int]) -> Side:
    """strides: of a block and of one of the other side, in a row of `flags`."""
    rows = len(flags)
    lists = torch.empty(rows, blocks, others, dtype=torch.int32, device=flags.device)
    counts = torch.empty(rows, blocks, 2, dtype=torch.int32, device=flags.device)
    every = triton.next_power_of_2(others)
    _attention_lists[(blocks, rows)](flags, lists, counts, others, *strides, ALL=every, num_warps=1)
    return lists, counts


@triton.jit
def _attention_flags(
    segments,
    flags,
    length,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Whether any token of a block of queries sees any token of a block of keys (1), and all see all (2); flags: [R,
    blocks of queries, blocks of keys]."""
    column, line, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    flags += (row * tl.num_programs(1) + line) * tl.num_programs(0) + column
    if column * KEYS >= (line + 1) * QUERIES:  # keys behind every query
        tl.store(flags, 0)
    else:
        segments += row * length * PARTS
        i, own, before, at = _queries(segments, line * QUERIES + tl.arange(0, QUERIES), length, PARTS)
        seen = _seen_from(segments, column * KEYS, i, own, before, at, length, KEYS, PARTS, WINDOW).to(tl.int32)
        tl.store(flags, tl.max(tl.max(seen, 1), 0) + tl.min(tl.min(seen, 1), 0))


@triton.jit
def _attention_lists(flags, lists, counts, others, stride, other_stride, ALL: tl.constexpr):
    """The list of one block, and its counts."""
    number, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    blocks, other = tl.num_programs(0), tl.arange(0, ALL)
    flags += row * blocks * others + number * stride
    flag = tl.load(flags + other * other_stride, mask=other < others, other=0)
    is_full, is_part = (flag == 2).to(tl.int32), (flag == 1).to(tl.int32)
    full = tl.sum(is_full, 0)
    place = tl.where(is_full > 0, tl.cumsum(is_full, 0), full + tl.cumsum(is_part, 0)) - 1
    to = row * blocks + number
    tl.store(lists + to * others + place, other, mask=flag > 0)
    tl.store(counts + to * 2, full)
    tl.store(counts + to * 2 + 1, full + tl.sum(is_part, 0))


@triton.jit
def _tile(
    x, first, stride, length, D: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, IS_WHOLE: tl.constexpr = False
):
    """[SIZE, WIDTH] of one head, from token `first` on; zeros beyond the row's end and behind D. IS_WHOLE: no token of
    it is beyond the row's end."""
    place, lanes = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    at = x + first.to(tl.int64) * stride + (place[:, None] * stride + lanes[None, :])
    if IS_WHOLE and D == WIDTH:
        found = tl.load(at)
    else:
        found = tl.load(at, mask=_inside((first + place < length)[:, None], D, WIDTH), other=0.0)
    return found


@triton.jit
def _inside(is_there, D: tl.constexpr, WIDTH: tl.constexpr):
    """The mask of a tile whose rows are there as `is_there`, [SIZE, 1], says."""
    if D != WIDTH:
        is_there = is_there & (tl.arange(0, WIDTH) < D)[None, :]
    return is_there


@triton.jit
def _queries(segments, i, length, PARTS: tl.constexpr):
    """Tokens i of a row as queries: their places (-1 beyond the row's end), their two segments, their positions."""
    is_there = i < length
    own = tl.load(segments + i * PARTS, mask=is_there, other=0)
    before = tl.load(segments + i * PARTS + 1, mask=is_there, other=0)
    return tl.where(is_there, i, -1), own, before, _positions(segments, i, is_there, PARTS)


@triton.jit
def _keys(segments, j, length, PARTS: tl.constexpr):
    """Tokens j of a row as keys: their places, their own segments, and their positions."""
    is_there = j < length
    own = tl.load(segments + j * PARTS, mask=is_there, other=0)
    return j, own, _positions(segments, j, is_there, PARTS)


@triton.jit
def _positions(segments, i, is_there, PARTS: tl.constexpr):
    """Only windows need them; without positions, the places stand for them and are not read."""
    found = i
    if PARTS == 3:
        found = tl.load(segments + i * PARTS + 2, mask=is_there, other=0)
    return found


@triton.jit
def _seen(i, own, before, at, j, keys, key_at, WINDOW: tl.constexpr):
    """The rule of `packing.visible`. A query beyond the row's end has place -1, so it sees nothing."""
    seen = ((own == keys) | (before == keys)) & (j <= i)
    if WINDOW > 0:
        seen = seen & (at - key_at < WINDOW)
    return seen


@triton.jit
def _seen_from(
    segments, first, i, own, before, at, length, KEYS: tl.constexpr, PARTS: tl.constexpr, WINDOW: tl.constexpr
):
    """Which of the keys from token `first` on these queries, as `_queries` has them, see: [QUERIES, KEYS]."""
    j, keys, key_at = _keys(segments, first + tl.arange(0, KEYS), length, PARTS)
    return _seen(
        i[:, None], own[:, None], before[:, None], at[:, None], j[None, :], keys[None, :], key_at[None, :], WINDOW
    )


@triton.jit
def _scores(products, scale, cap, HAS_CAP: tl.constexpr):
    """Scores as powers of two, and their derivative by scale * products (1 without a cap)."""
    scores, slope = products * scale, 1.0
    if HAS_CAP:
        tanh = 1.0 - 2.0 / (tl.exp2(scores * (2.0 * 1.4426950408889634 / cap)) + 1.0)
        scores, slope = cap * tanh, 1.0 - tanh * tanh
    return scores, slope


@triton.jit
def _attention(
    q,
    k,
    v,
    segments,
    lists,
    counts,
    out,
    logs,
    q_row,
    q_head,
    q_place,
    k_row,
    k_head,
    k_place,
    v_row,
    v_head,
    v_place,
    length,
    heads,
    group,
    scale,
    cap,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    blocks = tl.num_programs(0)
    block, head, row = blocks - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k += row * k_row + head // group * k_head
    v += row * v_row + head // group * v_head
    segments += row * length * PARTS
    first, places = block * QUERIES, tl.arange(0, QUERIES)
    i = first + places
    query = _tile(q + row * q_row + head * q_head, first, q_place, length, D, WIDTH, QUERIES)
    which = row * blocks + block
    lists += which * tl.cdiv(length, KEYS)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    found = tl.zeros([QUERIES, WIDTH], tl.float32)
    # Without a cap, `top` is of products before scaling: then scaling and subtracting are one operation.
    unit = scale
    if HAS_CAP:
        unit = 1.0
    begin = 0
    for part in tl.static_range(2):  # first what is seen whole: without segments and a row's end
        end = tl.load(counts + which * 2 + part)
        if part == 1:
            seeing, own, before, at = _queries(segments, i, length, PARTS)
        for turn in range(begin, end):
            other = tl.load(lists + turn) * KEYS
            scores = tl.dot(query, tl.trans(_tile(k, other, k_place, length, D, WIDTH, KEYS, part == 0)))
            if HAS_CAP:
                scores, _ = _scores(scores, scale, cap, HAS_CAP)
            if part == 1:
                is_seen = _seen_from(segments, other, seeing, own, before, at, length, KEYS, PARTS, WINDOW)
                scores = tl.where(is_seen, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            level = tl.where(higher == float("-inf"), 0.0, higher) * unit  # queries that have seen no key yet
            share = tl.exp2(scores * unit - level[:, None])
            shrunk = tl.exp2(top * unit - level)
            total = total * shrunk + tl.sum(share, 1)
            value = _tile(v, other, v_place, length, D, WIDTH, KEYS, part == 0)
            found = tl.dot(share.to(value.dtype), value, found * shrunk[:, None])
            top = higher
        begin = end
    is_any = total != 0.0  # NaN is passed on
    found = tl.where(is_any[:, None], found / tl.where(is_any, total, 1.0)[:, None], 0.0)
    to = out + (row * length + first) * heads * D + head * D
    to += places[:, None] * heads * D + tl.arange(0, WIDTH)[None, :]
    tl.store(to, found.to(out.dtype.element_ty), mask=_inside((i < length)[:, None], D, WIDTH))
    level = tl.where(is_any, top * unit + tl.log2(tl.where(is_any, total, 1.0)), float("inf"))
    tl.store(logs + (row * heads + head) * length + i, level, mask=i < length)


@triton.jit
def _attention_queries(
    q,
    k,
    v,
    segments,
    lists,
    counts,
    out,
    grad,
    logs,
    dots,
    of_q,
    q_row,
    q_head,
    q_place,
    k_row,
    k_head,
    k_place,
    v_row,
    v_head,
    v_place,
    o_row,
    o_head,
    o_place,
    length,
    heads,
    group,
    scale,
    scaling,
    cap,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    blocks = tl.num_programs(0)
    block, head, row = blocks - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k += row * k_row + head // group * k_head
    v += row * v_row + head // group * v_head
    segments += row * length * PARTS
    first, places = block * QUERIES, tl.arange(0, QUERIES)
    i = first + places
    query = _tile(q + row * q_row + head * q_head, first, q_place, length, D, WIDTH, QUERIES)
    of_out = _tile(grad + row * length * heads * D + head * D, first, heads * D, length, D, WIDTH, QUERIES)
    result = _tile(out + row * length * heads * D + head * D, first, heads * D, length, D, WIDTH, QUERIES)
    dot = tl.sum(of_out.to(tl.float32) * result.to(tl.float32), 1)
    log_at = (row * heads + head) * length + i
    tl.store(dots + log_at, dot, mask=i < length)
    level = tl.load(logs + log_at, mask=i < length, other=float("inf"))
    which = row * blocks + block
    lists += which * tl.cdiv(length, KEYS)
    found = tl.zeros([QUERIES, WIDTH], tl.float32)
    begin = 0
    for part in tl.static_range(2):  # first what is seen whole: without segments and a row's end
        end = tl.load(counts + which * 2 + part)
        if part == 1:
            seeing, own, before, at = _queries(segments, i, length, PARTS)
        for turn in range(begin, end):
            other = tl.load(lists + turn) * KEYS
            key = _tile(k, other, k_place, length, D, WIDTH, KEYS, part == 0)
            scores, slope = _scores(tl.dot(query, tl.trans(key)), scale, cap, HAS_CAP)
            share = tl.exp2(scores - level[:, None])
            of_share = tl.dot(of_out, tl.trans(_tile(v, other, v_place, length, D, WIDTH, KEYS, part == 0)))
            of_score = share * (of_share - dot[:, None])
            if part == 1:
                is_seen = _seen_from(segments, other, seeing, own, before, at, length, KEYS, PARTS, WINDOW)
                of_score = tl.where(is_seen, of_score, 0.0)
            if HAS_CAP:
                of_score *= slope
            found = tl.dot(of_score.to(key.dtype), key, found)
        begin = end
    to = of_q + row * o_row + head * o_head + first.to(tl.int64) * o_place
    to += places[:, None] * o_place + tl.arange(0, WIDTH)[None, :]
    tl.store(to, (found * scaling).to(of_q.dtype.element_ty), mask=_inside((i < length)[:, None], D, WIDTH))


@triton.jit
def _attention_keys(
    q,
    k,
    v,
    segments,
    lists,
    counts,
    grad,
    logs,
    dots,
    of_k,
    of_v,
    q_row,
    q_head,
    q_place,
    k_row,
    k_head,
    k_place,
    v_row,
    v_head,
    v_place,
    length,
    heads,
    group,
    scale,
    scaling,
    cap,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    q += row * q_row + head * q_head
    grad += row * length * heads * D + head * D
    logs += (row * heads + head) * length
    dots += (row * heads + head) * length
    segments += row * length * PARTS
    first, places = block * KEYS, tl.arange(0, KEYS)
    key = _tile(k + row * k_row + head // group * k_head, first, k_place, length, D, WIDTH, KEYS)
    value = _tile(v + row * v_row + head // group * v_head, first, v_place, length, D, WIDTH, KEYS)
    which = row * tl.num_programs(0) + block
    lists += which * tl.cdiv(length, QUERIES)
    found_k = tl.zeros([KEYS, WIDTH], tl.float32)
    found_v = tl.zeros([KEYS, WIDTH], tl.float32)
    begin = 0
    for part in tl.static_range(2):  # first what is seen whole: without segments and a row's end
        end = tl.load(counts + which * 2 + part)
        if part == 1:
            j, keys, key_at = _keys(segments, first + places, length, PARTS)
        for turn in range(begin, end):
            other = tl.load(lists + turn) * QUERIES
            place = other + tl.arange(0, QUERIES)
            query = _tile(q, other, q_place, length, D, WIDTH, QUERIES, part == 0)
            of_out = _tile(grad, other, heads * D, length, D, WIDTH, QUERIES, part == 0)
            level = tl.load(logs + place, mask=place < length, other=float("inf"))
            dot = tl.load(dots + place, mask=place < length, other=0.0)
            scores, slope = _scores(tl.dot(key, tl.trans(query)), scale, cap, HAS_CAP)
            share = tl.exp2(scores - level[None, :])
            if part == 1:
                seeing, own, before, at = _queries(segments, place, length, PARTS)
                is_seen = _seen(
                    seeing[None, :],
                    own[None, :],
                    before[None, :],
                    at[None, :],
                    j[:, None],
                    keys[:, None],
                    key_at[:, None],
                    WINDOW,
                )
                share = tl.where(is_seen, share, 0.0)
            found_v = tl.dot(share.to(of_out.dtype), of_out, found_v)
            of_share = tl.dot(value, tl.trans(of_out))
            of_score = share * (of_share - dot[None, :])
            if HAS_CAP:
                of_score *= slope
            found_k = tl.dot(of_score.to(query.dtype), query, found_k)
        begin = end
    begin, inside = (row * length + first) * heads * D + head * D, _inside((first + places < length)[:, None], D, WIDTH)
    to = places[:, None] * heads * D + tl.arange(0, WIDTH)[None, :]
    tl.store(of_k + begin + to, found_k * scaling, mask=inside)
    tl.store(of_v + begin + to, found_v, mask=inside)
