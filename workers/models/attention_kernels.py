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

BLOCK = 64
"""Tokens in a block, of queries or of keys."""
PER_BIT = 1.4426950408889634
"""log2(e): exponentials are computed as powers of two."""


class Attention(torch.autograd.Function):
    """softmax(scaling * q k^T, where `packing.visible(segments)` is true) v.

    q: [R, heads, T, D], k, v: [R, key heads, T, D], 16 bits, D a power of two of at least 16, last stride 1; segments:
    [R, 1, T, 2] int32, contiguous. Returns [R, T, heads, D].
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, segments: Tensor, scaling: float) -> Tensor:
        rows, heads, length, dim = q.shape
        blocks = triton.cdiv(length, BLOCK)
        with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]  # a kernel runs on the current device
            parts = segments, *_parts(segments)
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
                D=dim,
                SIZE=BLOCK,
                num_warps=4,
                num_stages=2,
            )
        ctx.save_for_backward(q, k, v, out, logs, *parts)
        ctx.scaling = scaling
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
        common = length, heads, heads // key_heads, ctx.scaling * PER_BIT, ctx.scaling
        sizes: dict[str, int] = {"D": dim, "SIZE": BLOCK}
        grid = triton.cdiv(length, BLOCK), heads, rows
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
                num_warps=4,
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
                num_warps=4,
                num_stages=2,
            )
        shared = rows, length, key_heads, heads // key_heads, dim
        of_k, of_v = (one.view(shared).sum(3).to(k.dtype).transpose(1, 2) for one in (of_k, of_v))
        return of_q, of_k, of_v, None, None


def _strides(*tensors: Tensor) -> list[int]:
    """Strides of rows, heads and tokens."""
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def _parts(segments: Tensor) -> tuple[Tensor, Tensor]:
    """The blocks of tokens that need work.

    Side 0 lists, for each block of queries, the blocks of keys with a visible token. Side 1 lists, for each block of
    keys, the blocks of queries that see any of it. lists: [2, R, blocks, blocks], block numbers in rising order;
    counts: [2, R, blocks], the length of each list.
    """
    rows, _, length, _ = segments.shape
    blocks = triton.cdiv(length, BLOCK)
    flags = torch.empty(rows, blocks, blocks, dtype=torch.uint8, device=segments.device)
    lists = torch.empty(2, rows, blocks, blocks, dtype=torch.int32, device=segments.device)
    counts = torch.empty(2, rows, blocks, dtype=torch.int32, device=segments.device)
    _attention_flags[(blocks, blocks, rows)](segments, flags, length, SIZE=BLOCK, num_warps=4)
    _attention_lists[(blocks, rows, 2)](flags, lists, counts, blocks, ALL=triton.next_power_of_2(blocks), num_warps=1)
    return lists, counts


@triton.jit
def _attention_flags(segments, flags, length, SIZE: tl.constexpr):
    """Whether any token of a block of queries sees any token of a block of keys; flags: [R, blocks, blocks]."""
    column, line, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    blocks, place = tl.num_programs(0), tl.arange(0, SIZE)
    segments += row * length * 2
    i, own, before = _queries(segments, line * SIZE + place, length)
    j, keys = _keys(segments, column * SIZE + place, length)
    seen = _seen(i[:, None], own[:, None], before[:, None], j[None, :], keys[None, :])
    tl.store(flags + (row * blocks + line) * blocks + column, tl.max(tl.max(seen.to(tl.int32), 1), 0))


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
def _tile(x, first, stride, length, D: tl.constexpr, SIZE: tl.constexpr):
    """[SIZE, D] of one head, from token `first` on; zeros beyond the row's end."""
    place = tl.arange(0, SIZE)
    at = x + first.to(tl.int64) * stride + (place[:, None] * stride + tl.arange(0, D)[None, :])
    return tl.load(at, mask=(first + place < length)[:, None], other=0.0)


@triton.jit
def _queries(segments, i, length):
    """Tokens i of a row as queries: their positions (-1 beyond the row's end) and their two segments."""
    is_there = i < length
    own = tl.load(segments + i * 2, mask=is_there, other=0)
    before = tl.load(segments + i * 2 + 1, mask=is_there, other=0)
    return tl.where(is_there, i, -1), own, before


@triton.jit
def _keys(segments, j, length):
    """Tokens j of a row as keys: their positions and their own segments."""
    return j, tl.load(segments + j * 2, mask=j < length, other=0)


@triton.jit
def _seen(i, own, before, j, keys):
    """The rule of `packing.visible`. A query beyond the row's end has position -1, so it sees nothing."""
    return ((own == keys) | (before == keys)) & (j <= i)


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
    D: tl.constexpr,
    SIZE: tl.constexpr,
):
    blocks = tl.num_programs(0)
    block, head, row = blocks - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k += row * k_row + head // group * k_head
    v += row * v_row + head // group * v_head
    first, places = block * SIZE, tl.arange(0, SIZE)
    i = first + places
    segments += row * length * 2
    seeing, own, before = _queries(segments, i, length)
    query = _tile(q + row * q_row + head * q_head, first, q_place, length, D, SIZE)
    top = tl.full([SIZE], float("-inf"), tl.float32)
    total = tl.zeros([SIZE], tl.float32)
    found = tl.zeros([SIZE, D], tl.float32)
    which = row * blocks + block
    for turn in range(tl.load(counts + which)):
        number = tl.load(lists + which * blocks + turn)
        other = number * SIZE
        j, keys = _keys(segments, other + places, length)
        is_seen = _seen(seeing[:, None], own[:, None], before[:, None], j[None, :], keys[None, :])
        scores = tl.dot(query, tl.trans(_tile(k, other, k_place, length, D, SIZE))) * scale
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # queries that have seen no key yet
        share = tl.exp2(scores - level[:, None])
        shrunk = tl.exp2(top - level)
        total = total * shrunk + tl.sum(share, 1)
        value = _tile(v, other, v_place, length, D, SIZE)
        found = tl.dot(share.to(value.dtype), value, found * shrunk[:, None])
        top = higher
    is_any = total != 0.0  # NaN is passed on
    found = tl.where(is_any[:, None], found / tl.where(is_any, total, 1.0)[:, None], 0.0)
    to = out + (row * length + first) * heads * D + head * D + (places[:, None] * heads * D + tl.arange(0, D)[None, :])
    tl.store(to, found.to(out.dtype.element_ty), mask=(i < length)[:, None])
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
    D: tl.constexpr,
    SIZE: tl.constexpr,
):
    blocks = tl.num_programs(0)
    block, head, row = blocks - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k += row * k_row + head // group * k_head
    v += row * v_row + head // group * v_head
    first, places = block * SIZE, tl.arange(0, SIZE)
    i = first + places
    segments += row * length * 2
    seeing, own, before = _queries(segments, i, length)
    query = _tile(q + row * q_row + head * q_head, first, q_place, length, D, SIZE)
    of_out = _tile(grad + row * length * heads * D + head * D, first, heads * D, length, D, SIZE)
    result = _tile(out + row * length * heads * D + head * D, first, heads * D, length, D, SIZE)
    dot = tl.sum(of_out.to(tl.float32) * result.to(tl.float32), 1)
    at = (row * heads + head) * length + i
    tl.store(dots + at, dot, mask=i < length)
    level = tl.load(logs + at, mask=i < length, other=float("inf"))
    found = tl.zeros([SIZE, D], tl.float32)
    which = row * blocks + block
    for turn in range(tl.load(counts + which)):
        number = tl.load(lists + which * blocks + turn)
        other = number * SIZE
        j, keys = _keys(segments, other + places, length)
        is_seen = _seen(seeing[:, None], own[:, None], before[:, None], j[None, :], keys[None, :])
        key = _tile(k, other, k_place, length, D, SIZE)
        share = tl.exp2(tl.dot(query, tl.trans(key)) * scale - level[:, None])
        of_share = tl.dot(of_out, tl.trans(_tile(v, other, v_place, length, D, SIZE)))
        of_score = tl.where(is_seen, share * (of_share - dot[:, None]), 0.0)
        found = tl.dot(of_score.to(key.dtype), key, found)
    to = of_q + row * o_row + head * o_head + first.to(tl.int64) * o_place
    to += places[:, None] * o_place + tl.arange(0, D)[None, :]
    tl.store(to, (found * scaling).to(of_q.dtype.element_ty), mask=(i < length)[:, None])


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
    D: tl.constexpr,
    SIZE: tl.constexpr,
):
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    blocks, rows = tl.num_programs(0), tl.num_programs(2)
    q += row * q_row + head * q_head
    grad += row * length * heads * D + head * D
    logs += (row * heads + head) * length
    dots += (row * heads + head) * length
    first, places = block * SIZE, tl.arange(0, SIZE)
    key = _tile(k + row * k_row + head // group * k_head, first, k_place, length, D, SIZE)
    value = _tile(v + row * v_row + head // group * v_head, first, v_place, length, D, SIZE)
    segments += row * length * 2
    j, keys = _keys(segments, first + places, length)
    found_k = tl.zeros([SIZE, D], tl.float32)
    found_v = tl.zeros([SIZE, D], tl.float32)
    which = (rows + row) * blocks + block
    for turn in range(tl.load(counts + which)):
        number = tl.load(lists + which * blocks + turn)
        other = number * SIZE
        i = other + places
        seeing, own, before = _queries(segments, i, length)
        is_seen = _seen(seeing[None, :], own[None, :], before[None, :], j[:, None], keys[:, None])
        query = _tile(q, other, q_place, length, D, SIZE)
        of_out = _tile(grad, other, heads * D, length, D, SIZE)
        level = tl.load(logs + i, mask=i < length, other=float("inf"))
        dot = tl.load(dots + i, mask=i < length, other=0.0)
        share = tl.exp2(tl.dot(key, tl.trans(query)) * scale - level[None, :])
        share = tl.where(is_seen, share, 0.0)
        found_v = tl.dot(share.to(of_out.dtype), of_out, found_v)
        of_share = tl.dot(value, tl.trans(of_out))
        of_score = share * (of_share - dot[None, :])
        found_k = tl.dot(of_score.to(query.dtype), query, found_k)
    begin, inside = (row * length + first) * heads * D + head * D, (first + places < length)[:, None]
    to = places[:, None] * heads * D + tl.arange(0, D)[None, :]
    tl.store(of_k + begin + to, found_k * scaling, mask=inside)
    tl.store(of_v + begin + to, found_v, mask=inside)
