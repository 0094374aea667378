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

Lists = dict[tuple[int, int], tuple[Tensor, Tensor]]
"""Tokens of a block, window -> what `_listed` finds in the segments of a pass."""
BLOCK, NARROW = 64, 32
"""Tokens in a block, of queries or of keys; of heads wider than 128, whose blocks would not fit into registers."""
PER_BIT = 1.4426950408889634
"""log2(e): exponentials are computed as powers of two."""


class Attention(torch.autograd.Function):
    """softmax(scaling * q k^T, where `packing.visible(segments, window=window)` is true) v.

    q: [R, heads, T, D], k, v: [R, key heads, T, D], 16 bits, D at most 256, last stride 1; segments: [R, 1, T, 2]
    int32, contiguous, with positions behind if there is a window. window: 0 for none. cap: scaled scores
    x become cap * tanh(x / cap); 0 for none. lists: what other layers found in the same segments, to which this one
    adds what is missing. Returns [R, T, heads, D].
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
        kind = _kind(dim, segments.shape[-1], window, cap)
        blocks = triton.cdiv(length, kind["SIZE"])
        lists, key = {} if lists is None else lists, (kind["SIZE"], window)
        with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]  # a kernel runs on the current device
            if key not in lists:
                lists[key] = _listed(segments, *key)
            parts = segments, *lists[key]
            out = q.new_empty(rows, length, heads, dim)
            logs = q.new_empty(rows, heads, length, dtype=torch.float32)
            _attention[(blocks, heads, rows)](
                q,
                k,
                v,
                *parts,
                out,
                logs,
                *_strides(q, k, v),
                length,
                heads,
                heads // k.shape[1],
                scaling * PER_BIT,
                cap * PER_BIT,
                **kind,
                num_stages=2,
            )
        ctx.save_for_backward(q, k, v, out, logs, *parts)
        ctx.scaling, ctx.cap, ctx.kind = scaling, cap, kind
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, logs, *parts = ctx.saved_tensors
        rows, heads, length, dim = q.shape
        key_heads = k.shape[1]
        grad = grad.contiguous()
        of_q, dots = torch.empty_like(q), torch.empty_like(logs)
        # One gradient for each query head; the heads that share a key head are summed below.
        of_k, of_v = (q.new_empty(rows, length, heads, dim, dtype=torch.float32) for _ in range(2))
        common = length, heads, heads // key_heads, ctx.scaling * PER_BIT, ctx.scaling, ctx.cap * PER_BIT
        sizes: dict[str, Any] = ctx.kind
        grid = triton.cdiv(length, sizes["SIZE"]), heads, rows
        with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
            _attention_queries[grid](
                q,
                k,
                v,
                *parts,
                out,
                grad,
                logs,
                dots,
                of_q,
                *_strides(q, k, v, of_q),
                *common,
                **sizes,
                num_stages=2,
            )
            _attention_keys[grid](
                q,
                k,
                v,
                *parts,
                grad,
                logs,
                dots,
                of_k,
                of_v,
                *_strides(q, k, v),
                *common,
                **sizes,
                num_stages=2,
            )
        shared = rows, length, key_heads, heads // key_heads, dim
        of_k, of_v = (one.view(shared).sum(3).to(k.dtype).transpose(1, 2) for one in (of_k, of_v))
        return of_q, of_k, of_v, None, None, None, None, None


def _kind(dim: int, parts: int, window: int, cap: float) -> dict[str, Any]:
    """What a kernel is compiled for, and its warps. D: width in memory; WIDTH: in registers, zeros behind D; PARTS:
    numbers of a token in the segments."""
    width = max(16, triton.next_power_of_2(dim))
    size = BLOCK if width <= 128 else NARROW
    warps = 8 if width > 128 or cap else 4  # with fewer, registers spill
    kind = {"D": dim, "WIDTH": width, "SIZE": size, "PARTS": parts, "WINDOW": window, "HAS_CAP": cap != 0.0}
    return {**kind, "num_warps": warps}


def _strides(*tensors: Tensor) -> list[int]:
    """Strides of rows, heads and tokens."""
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def _listed(segments: Tensor, size: int, window: int) -> tuple[Tensor, Tensor]:
    """The blocks of tokens that need work.

    Side 0 lists, for each block of queries, the blocks of keys with a visible token. Side 1 lists, for each block of
    keys, the blocks of queries that see any of it. lists: [2, R, blocks, blocks], block numbers in rising order;
    counts: [2, R, blocks], the length of each list.
    """
    rows, _, length, _ = segments.shape
    blocks = triton.cdiv(length, size)
    flags = torch.empty(rows, blocks, blocks, dtype=torch.uint8, device=segments.device)
    lists = torch.empty(2, rows, blocks, blocks, dtype=torch.int32, device=segments.device)
    counts = torch.empty(2, rows, blocks, dtype=torch.int32, device=segments.device)
    kind = {"SIZE": size, "PARTS": segments.shape[-1], "WINDOW": window}
    _attention_flags[(blocks, blocks, rows)](segments, flags, length, **kind, num_warps=4)
    _attention_lists[(blocks, rows, 2)](flags, lists, counts, blocks, ALL=triton.next_power_of_2(blocks), num_warps=1)
    return lists, counts


@triton.jit
def _attention_flags(segments, flags, length, SIZE: tl.constexpr, PARTS: tl.constexpr, WINDOW: tl.constexpr):
    """Whether any token of a block of queries sees any token of a block of keys; flags: [R, blocks, blocks]."""
    column, line, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    blocks, place = tl.num_programs(0), tl.arange(0, SIZE)
    flags += (row * blocks + line) * blocks + column
    if column > line:  # keys behind every query
        tl.store(flags, 0)
    else:
        segments += row * length * PARTS
        i, own, before, at = _queries(segments, line * SIZE + place, length, PARTS)
        j, keys, key_at = _keys(segments, column * SIZE + place, length, PARTS)
        seen = _seen(
            i[:, None], own[:, None], before[:, None], at[:, None], j[None, :], keys[None, :], key_at[None, :], WINDOW
        )
        tl.store(flags, tl.max(tl.max(seen.to(tl.int32), 1), 0))


@triton.jit
def _attention_lists(flags, lists, counts, blocks, ALL: tl.constexpr):
    """side 0 reads a row of the flags, side 1 a column."""
    number, row, side = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    other = tl.arange(0, ALL)
    at = tl.where(side == 0, number * blocks + other, other * blocks + number)
    is_seen = tl.load(flags + row * blocks * blocks + at, mask=other < blocks, other=0).to(tl.int32)
    to = (side * tl.num_programs(1) + row) * blocks + number
    tl.store(lists + to * blocks + tl.cumsum(is_seen, 0) - 1, other, mask=is_seen > 0)
    tl.store(counts + to, tl.sum(is_seen, 0))


@triton.jit
def _tile(x, first, stride, length, D: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """[SIZE, WIDTH] of one head, from token `first` on; zeros beyond the row's end and behind D."""
    place, lanes = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    at = x + first.to(tl.int64) * stride + (place[:, None] * stride + lanes[None, :])
    return tl.load(at, mask=_inside((first + place < length)[:, None], D, WIDTH), other=0.0)


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
    SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    blocks = tl.num_programs(0)
    block, head, row = blocks - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k += row * k_row + head // group * k_head
    v += row * v_row + head // group * v_head
    first, places = block * SIZE, tl.arange(0, SIZE)
    i = first + places
    segments += row * length * PARTS
    seeing, own, before, at = _queries(segments, i, length, PARTS)
    query = _tile(q + row * q_row + head * q_head, first, q_place, length, D, WIDTH, SIZE)
    top = tl.full([SIZE], float("-inf"), tl.float32)
    total = tl.zeros([SIZE], tl.float32)
    found = tl.zeros([SIZE, WIDTH], tl.float32)
    which = row * blocks + block
    for turn in range(tl.load(counts + which)):
        number = tl.load(lists + which * blocks + turn)
        other = number * SIZE
        j, keys, key_at = _keys(segments, other + places, length, PARTS)
        is_seen = _seen(
            seeing[:, None],
            own[:, None],
            before[:, None],
            at[:, None],
            j[None, :],
            keys[None, :],
            key_at[None, :],
            WINDOW,
        )
        scores = tl.dot(query, tl.trans(_tile(k, other, k_place, length, D, WIDTH, SIZE)))
        scores, _ = _scores(scores, scale, cap, HAS_CAP)
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # queries that have seen no key yet
        share = tl.exp2(scores - level[:, None])
        shrunk = tl.exp2(top - level)
        total = total * shrunk + tl.sum(share, 1)
        value = _tile(v, other, v_place, length, D, WIDTH, SIZE)
        found = tl.dot(share.to(value.dtype), value, found * shrunk[:, None])
        top = higher
    is_any = total != 0.0  # NaN is passed on
    found = tl.where(is_any[:, None], found / tl.where(is_any, total, 1.0)[:, None], 0.0)
    to = out + (row * length + first) * heads * D + head * D
    to += places[:, None] * heads * D + tl.arange(0, WIDTH)[None, :]
    tl.store(to, found.to(out.dtype.element_ty), mask=_inside((i < length)[:, None], D, WIDTH))
    level = tl.where(is_any, top + tl.log2(tl.where(is_any, total, 1.0)), float("inf"))
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
    SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    blocks = tl.num_programs(0)
    block, head, row = blocks - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k += row * k_row + head // group * k_head
    v += row * v_row + head // group * v_head
    first, places = block * SIZE, tl.arange(0, SIZE)
    i = first + places
    segments += row * length * PARTS
    seeing, own, before, at = _queries(segments, i, length, PARTS)
    query = _tile(q + row * q_row + head * q_head, first, q_place, length, D, WIDTH, SIZE)
    of_out = _tile(grad + row * length * heads * D + head * D, first, heads * D, length, D, WIDTH, SIZE)
    result = _tile(out + row * length * heads * D + head * D, first, heads * D, length, D, WIDTH, SIZE)
    dot = tl.sum(of_out.to(tl.float32) * result.to(tl.float32), 1)
    log_at = (row * heads + head) * length + i
    tl.store(dots + log_at, dot, mask=i < length)
    level = tl.load(logs + log_at, mask=i < length, other=float("inf"))
    found = tl.zeros([SIZE, WIDTH], tl.float32)
    which = row * blocks + block
    for turn in range(tl.load(counts + which)):
        number = tl.load(lists + which * blocks + turn)
        other = number * SIZE
        j, keys, key_at = _keys(segments, other + places, length, PARTS)
        is_seen = _seen(
            seeing[:, None],
            own[:, None],
            before[:, None],
            at[:, None],
            j[None, :],
            keys[None, :],
            key_at[None, :],
            WINDOW,
        )
        key = _tile(k, other, k_place, length, D, WIDTH, SIZE)
        scores, slope = _scores(tl.dot(query, tl.trans(key)), scale, cap, HAS_CAP)
        share = tl.exp2(scores - level[:, None])
        of_share = tl.dot(of_out, tl.trans(_tile(v, other, v_place, length, D, WIDTH, SIZE)))
        of_score = tl.where(is_seen, share * (of_share - dot[:, None]), 0.0)
        if HAS_CAP:
            of_score *= slope
        found = tl.dot(of_score.to(key.dtype), key, found)
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
    SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    blocks, rows = tl.num_programs(0), tl.num_programs(2)
    q += row * q_row + head * q_head
    grad += row * length * heads * D + head * D
    logs += (row * heads + head) * length
    dots += (row * heads + head) * length
    first, places = block * SIZE, tl.arange(0, SIZE)
    key = _tile(k + row * k_row + head // group * k_head, first, k_place, length, D, WIDTH, SIZE)
    value = _tile(v + row * v_row + head // group * v_head, first, v_place, length, D, WIDTH, SIZE)
    segments += row * length * PARTS
    j, keys, key_at = _keys(segments, first + places, length, PARTS)
    found_k = tl.zeros([SIZE, WIDTH], tl.float32)
    found_v = tl.zeros([SIZE, WIDTH], tl.float32)
    which = (rows + row) * blocks + block
    for turn in range(tl.load(counts + which)):
        number = tl.load(lists + which * blocks + turn)
        other = number * SIZE
        i = other + places
        seeing, own, before, at = _queries(segments, i, length, PARTS)
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
        query = _tile(q, other, q_place, length, D, WIDTH, SIZE)
        of_out = _tile(grad, other, heads * D, length, D, WIDTH, SIZE)
        level = tl.load(logs + i, mask=i < length, other=float("inf"))
        dot = tl.load(dots + i, mask=i < length, other=0.0)
        scores, slope = _scores(tl.dot(key, tl.trans(query)), scale, cap, HAS_CAP)
        share = tl.exp2(scores - level[None, :])
        share = tl.where(is_seen, share, 0.0)
        found_v = tl.dot(share.to(of_out.dtype), of_out, found_v)
        of_share = tl.dot(value, tl.trans(of_out))
        of_score = share * (of_share - dot[None, :])
        if HAS_CAP:
            of_score *= slope
        found_k = tl.dot(of_score.to(query.dtype), query, found_k)
    begin, inside = (row * length + first) * heads * D + head * D, _inside((first + places < length)[:, None], D, WIDTH)
    to = places[:, None] * heads * D + tl.arange(0, WIDTH)[None, :]
    tl.store(of_k + begin + to, found_k * scaling, mask=inside)
    tl.store(of_v + begin + to, found_v, mask=inside)
