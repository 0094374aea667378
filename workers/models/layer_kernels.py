"""Triton kernels for a decoder layer's small operations and for 4-bit weights. Import it only where Triton runs.

Each is one launch where plain modules take five to ten, and saves only its inputs for the backward pass. Sums and
products are in float32; results are rounded once.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from workers.models.nf4 import levels

BLOCK = 1024
NORM_PROGRAMS = 1024
"""Most programs that share the rows for the gradient of a norm's weight."""


class Rotary(torch.autograd.Function):
    """Rotary position embedding of queries and keys, [B, heads, T, D] each; cos, sin: [B or 1, T, D], equal halves."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return _rotated(query, key, cos=cos, sin=sin, sign=1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_query: Tensor, of_key: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        grads = (one if one.stride(-1) == 1 else one.contiguous() for one in (of_query, of_key))
        return *_rotated(*grads, cos=cos, sin=sin, sign=-1.0), None, None


@dataclass(frozen=True)
class Turn:
    """What becomes of queries and keys before attention. norm: "", "head" (weights of a head's width) or "whole" (of
    all heads together); rotated: dimensions of a head that are rotated, 0 for none."""

    norm: str
    eps: float
    plus_one: bool
    rotated: int
    is_interleaved: bool


class Turned(torch.autograd.Function):
    """Norm and rotary position embedding of queries and keys, [B, heads, T, D] each, rounded after either.

    weights: of the norms of both, frozen, or None; angles: cosines and sines, [2, B or 1, T, rotated], or None; growth:
    what rotated queries are multiplied by, [B or 1, T], or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        of_query: Tensor | None,
        of_key: Tensor | None,
        angles: Tensor | None,
        growth: Tensor | None,
        turn: Turn,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(query, key, of_query, of_key, angles, growth)
        ctx.turn = turn
        outs = torch.empty_like(query), torch.empty_like(key)
        for x, out, weight, factor in ((query, outs[0], of_query, growth), (key, outs[1], of_key, None)):
            _turned(x, None, out, weight, angles, factor, turn)
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        query, key, of_query, of_key, angles, growth = ctx.saved_tensors
        outs = torch.empty_like(query), torch.empty_like(key)
        each = (query, grads[0], outs[0], of_query, growth), (key, grads[1], outs[1], of_key, None)
        for x, grad, out, weight, factor in each:
            grad = grad if grad.stride(-1) == 1 else grad.contiguous()
            _turned(x, grad, out, weight, angles, factor, ctx.turn)
        return *outs, None, None, None, None, None


def _turned(
    x: Tensor,
    grad: Tensor | None,
    out: Tensor,
    weight: Tensor | None,
    angles: Tensor | None,
    factor: Tensor | None,
    turn: Turn,
) -> None:
    """Fill `out`, which has the memory layout of x: with the result, or with the gradient of x if `grad` is given."""
    batch, heads, length, dim = x.shape
    rotated = turn.rotated or dim
    cos, sin = (x, x) if angles is None else angles.unbind()
    of_angles = (0 if cos.shape[0] == 1 else cos.stride(0)), cos.stride(1)
    of_factor = (0, 0) if factor is None else ((0 if factor.shape[0] == 1 else factor.stride(0)), factor.stride(1))
    lanes = triton.next_power_of_2(heads)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _turn_heads[(batch * length,)](
            x,
            x if grad is None else grad,
            out,
            x if weight is None else weight,
            cos,
            sin,
            x if factor is None else factor,
            *x.stride()[:3],
            *(x if grad is None else grad).stride()[:3],
            *out.stride()[:3],
            *of_angles,
            *of_factor,
            length,
            heads,
            turn.eps,
            D=dim,
            ROTATED=rotated,
            HALF=triton.next_power_of_2(rotated // 2),
            REST=0 if rotated == dim else triton.next_power_of_2(dim - rotated),
            HEADS=lanes,
            NORM=turn.norm,
            PLUS_ONE=turn.plus_one,
            HAS_ROPE=angles is not None,
            INTERLEAVED=turn.is_interleaved,
            GROWS=factor is not None,
            BACKWARD=grad is not None,
            num_warps=4 if lanes * dim <= 2048 else 8,
        )


class Norm(torch.autograd.Function):
    """RMS norm of x, [..., H] in any dtype, returned in the dtype of its weight. plus_one: the scale is one plus the
    weight. A trained weight's gradient is summed in float32 in an order that only the number of rows decides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, plus_one: bool = False) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.plus_one = eps, plus_one
        out, width = torch.empty_like(x, dtype=weight.dtype), x.shape[-1]
        kind = {"PLUS_ONE": plus_one, "BLOCK": triton.next_power_of_2(width), "num_warps": _warps(width)}
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _norm[(x.numel() // width,)](x, weight, out, width, eps, **kind)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad, of_x, width = grad.contiguous(), torch.empty_like(x), x.shape[-1]
        kind = {"PLUS_ONE": ctx.plus_one, "BLOCK": triton.next_power_of_2(width), "num_warps": _warps(width)}
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _norm_backward[(x.numel() // width,)](grad, x, weight, of_x, width, ctx.eps, **kind)
        return of_x, _of_weight(grad, x, weight, ctx.eps) if ctx.needs_input_grad[1] else None, None, None


def _warps(width: int) -> int:
    """Of a program that reads one row: a head's is too narrow for more than one."""
    return 8 if width >= 512 else 1


def _of_weight(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The gradient of a norm's weight, [H] in its dtype."""
    width = x.shape[-1]
    rows, block = x.numel() // width, triton.next_power_of_2(width)
    at_once = max(1, BLOCK // block)
    sums = x.new_empty(min(triton.cdiv(rows, at_once), NORM_PROGRAMS), width, dtype=torch.float32)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _norm_weight[(len(sums),)](grad, x, sums, rows, width, eps, ROWS=at_once, BLOCK=block, num_warps=8)
    return sums.sum(0).to(weight.dtype)


class Gated(torch.autograd.Function):
    """activation(gate) * up, of the same shape and both contiguous. kind: an activation by transformers' name."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, kind: str = "silu") -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.kind = kind
        out = torch.empty_like(gate)
        _launch(_gate, gate, (gate, up, out, gate), gate.shape[-1], kind=kind, has_gate=True, is_pair=False)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
        tensors = grad.contiguous(), gate, up, of_gate, of_up, gate
        _launch(_gate_backward, gate, tensors, gate.shape[-1], kind=ctx.kind, has_gate=True, is_pair=False)
        return of_gate, of_up, None


class GatedPair(torch.autograd.Function):
    """The same of both side by side: [..., 2 F] to [..., F]."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, kind: str) -> Tensor:
        both = both.contiguous()
        ctx.save_for_backward(both)
        ctx.kind, width = kind, both.shape[-1] // 2
        out = both.new_empty(*both.shape[:-1], width)
        _launch(_gate, out, (both, both, out, both), width, kind=kind, has_gate=True, is_pair=True)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (both,) = ctx.saved_tensors
        of_both, grad = torch.empty_like(both), grad.contiguous()
        tensors = grad, both, both, of_both, of_both, both
        _launch(_gate_backward, grad, tensors, both.shape[-1] // 2, kind=ctx.kind, has_gate=True, is_pair=True)
        return of_both, None


class Activated(torch.autograd.Function):
    """activation(x), for an MLP without a gate. slopes: of xIELU, [4] float32, frozen (as in the decode step)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slopes: Tensor, kind: str) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, slopes)
        ctx.kind = kind
        out = torch.empty_like(x)
        _launch(_gate, x, (x, x, out, slopes), x.shape[-1], kind=kind, has_gate=False, is_pair=False)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, slopes = ctx.saved_tensors
        of_x = torch.empty_like(x)
        tensors = grad.contiguous(), x, x, of_x, of_x, slopes
        _launch(_gate_backward, x, tensors, x.shape[-1], kind=ctx.kind, has_gate=False, is_pair=False)
        return of_x, None, None


def _launch(
    kernel: Any, like: Tensor, tensors: tuple[Tensor, ...], width: int, *, kind: str, has_gate: bool, is_pair: bool
) -> None:
    count = like.numel()
    with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]  # a kernel runs on the current device
        kernel[(triton.cdiv(count, BLOCK),)](
            *tensors, count, width, KIND=kind, HAS_GATE=has_gate, IS_PAIR=is_pair, BLOCK=BLOCK
        )


def dequantized(codes: Tensor, scales: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """An NF4 weight in `dtype`: level times scale in float32, rounded once. codes: uint8, two per byte; scales:
    float32, one per 64 weights."""
    out = torch.empty(shape, dtype=dtype, device=codes.device)
    with torch.cuda.device_of(codes):  # type: ignore[no-untyped-call]
        _dequantize[(triton.cdiv(out.numel(), 2 * BLOCK),)](
            codes, scales, levels_on(codes.device), out, out.numel(), BLOCK=BLOCK
        )
    return out


@cache
def levels_on(device: torch.device) -> Tensor:
    """The levels of NF4, [16] float32."""
    return levels().to(device)


def _rotated(query: Tensor, key: Tensor, *, cos: Tensor, sin: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    """Rotate by the angles, or back (`sign`). The results have the memory layout of their inputs."""
    batch, heads, length, dim = query.shape
    out, out_key = torch.empty_like(query), torch.empty_like(key)
    strides = [one.stride()[:3] for one in (query, out, key, out_key)]
    of_angles = (0 if cos.shape[0] == 1 else cos.stride(0)), cos.stride(1)
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        _rotate[(batch * length,)](
            query,
            out,
            key,
            out_key,
            cos,
            sin,
            *strides[0],
            *strides[1],
            *strides[2],
            *strides[3],
            *of_angles,
            length,
            heads,
            key.shape[1],
            sign,
            HALF=dim // 2,
            HEADS=triton.next_power_of_2(heads),
            KEY_HEADS=triton.next_power_of_2(key.shape[1]),
            num_warps=4,
        )
    return out, out_key


@triton.jit
def _turn(x, out, cos, sin, x_head, out_head, heads, HALF: tl.constexpr, HEADS: tl.constexpr):
    """Rotate one token's heads; x and out point at the first head. cos, sin: [HALF]."""
    number, lanes = tl.arange(0, HEADS), tl.arange(0, HALF)
    inside = (number < heads)[:, None]
    at = x + number[:, None] * x_head + lanes[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    to = out + number[:, None] * out_head + lanes[None, :]
    tl.store(to, (first * cos[None, :] - second * sin[None, :]).to(out.dtype.element_ty), mask=inside)
    tl.store(to + HALF, (second * cos[None, :] + first * sin[None, :]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(
    query,
    out,
    key,
    out_key,
    cos,
    sin,
    q_batch,
    q_head,
    q_place,
    o_batch,
    o_head,
    o_place,
    k_batch,
    k_head,
    k_place,
    p_batch,
    p_head,
    p_place,
    angle_batch,
    angle_place,
    length,
    heads,
    key_heads,
    sign,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
):
    batch = (tl.program_id(0) // length).to(tl.int64)
    place = tl.program_id(0) % length
    lanes = tl.arange(0, HALF)
    angle = batch * angle_batch + place * angle_place
    c = tl.load(cos + angle + lanes).to(tl.float32)
    s = tl.load(sin + angle + lanes).to(tl.float32) * sign
    query += batch * q_batch + place * q_place
    out += batch * o_batch + place * o_place
    _turn(query, out, c, s, q_head, o_head, heads, HALF, HEADS)
    key += batch * k_batch + place * k_place
    out_key += batch * p_batch + place * p_place
    _turn(key, out_key, c, s, k_head, p_head, key_heads, HALF, KEY_HEADS)


@triton.jit
def _dequantize(codes, scales, levels, out, count, BLOCK: tl.constexpr):
    """BLOCK counts bytes."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    byte = begin + tl.arange(0, BLOCK)
    inside = 2 * byte < count
    pair = tl.load(codes + byte, mask=inside, other=0).to(tl.int32)
    scale = tl.load(scales + byte // 32, mask=inside, other=0.0)
    values = tl.interleave(tl.load(levels + (pair >> 4)) * scale, tl.load(levels + (pair & 15)) * scale)
    at = 2 * begin + tl.arange(0, 2 * BLOCK)
    tl.store(out + at, values.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def _scale_of(weight, columns, inside, PLUS_ONE: tl.constexpr):
    found = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if PLUS_ONE:
        found += 1.0
    return found


@triton.jit
def _norm(x, weight, out, width, eps, PLUS_ONE: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    base = tl.program_id(0).to(tl.int64) * width
    values = tl.load(x + base + columns, mask=inside, other=0.0).to(tl.float32)
    w = _scale_of(weight, columns, inside, PLUS_ONE)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    tl.store(out + base + columns, (values * scale * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(grad, x, weight, of_x, width, eps, PLUS_ONE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    base = tl.program_id(0).to(tl.int64) * width
    values = tl.load(x + base + columns, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + base + columns, mask=inside, other=0.0).to(tl.float32)
    g *= _scale_of(weight, columns, inside, PLUS_ONE)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    along = tl.sum(g * values, 0) * scale * scale / width
    tl.store(of_x + base + columns, ((g - values * along) * scale).to(of_x.dtype.element_ty), mask=inside)


@triton.jit
def _norm_weight(grad, x, sums, rows, width, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Each program adds up groups of ROWS rows, as many groups apart as there are programs."""
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        number = first + tl.arange(0, ROWS)
        inside = (number < rows)[:, None] & (columns < width)[None, :]
        at = number.to(tl.int64)[:, None] * width + columns[None, :]
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values, 1) / width + eps)[:, None]
        total += tl.sum(tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * values * scale, 0)
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + columns, total, mask=columns < width)


@triton.jit
def _activation(x, slopes, KIND: tl.constexpr):
    """The activation and its derivative, of float32."""
    if KIND == "silu":
        sigmoid = 1.0 / (1.0 + tl.exp(-x))
        found, slope = x / (1.0 + tl.exp(-x)), sigmoid * (1.0 + x * (1.0 - sigmoid))
    elif KIND == "gelu_pytorch_tanh":  # x / 2 * (1 + tanh(y)) = x * sigmoid(2 y)
        sigmoid = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
        inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        found, slope = x * sigmoid, sigmoid + x * sigmoid * (1.0 - sigmoid) * inner
    elif KIND == "relu2":
        found, slope = tl.maximum(x, 0.0) * tl.maximum(x, 0.0), 2.0 * tl.maximum(x, 0.0)
    else:
        above, below, beta = tl.load(slopes), tl.load(slopes + 1), tl.load(slopes + 2)
        eps = tl.load(slopes + 3)
        exp = tl.exp(tl.minimum(x, eps))
        found = tl.where(x > 0, above * x * x, (exp - 1.0 - x) * below) + beta * x
        slope = tl.where(x > 0, 2.0 * above * x, (tl.where(x < eps, exp, 0.0) - 1.0) * below) + beta
    return found, slope


@triton.jit
def _places(at, width, IS_PAIR: tl.constexpr):
    """Where gate and up lie for the results `at`."""
    first = at
    second = at
    if IS_PAIR:
        first = at + at // width * width
        second = first + width
    return first, second


@triton.jit
def _gate(
    gate,
    up,
    out,
    slopes,
    count,
    width,
    KIND: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_PAIR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    first, second = _places(at, width, IS_PAIR)
    found, _ = _activation(tl.load(gate + first, mask=inside, other=0.0).to(tl.float32), slopes, KIND)
    found = found.to(out.dtype.element_ty)
    if HAS_GATE:
        u = tl.load(up + second, mask=inside, other=0.0).to(tl.float32)
        found = (found.to(tl.float32) * u).to(out.dtype.element_ty)
    tl.store(out + at, found, mask=inside)


@triton.jit
def _gate_backward(
    grad,
    gate,
    up,
    of_gate,
    of_up,
    slopes,
    count,
    width,
    KIND: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_PAIR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    first, second = _places(at, width, IS_PAIR)
    d = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + first, mask=inside, other=0.0).to(tl.float32)
    found, slope = _activation(g, slopes, KIND)
    if HAS_GATE:
        u = tl.load(up + second, mask=inside, other=0.0).to(tl.float32)
        found = found.to(of_up.dtype.element_ty).to(tl.float32)
        tl.store(of_up + second, (d * found).to(of_up.dtype.element_ty), mask=inside)
        d = d * u
    tl.store(of_gate + first, (d * slope).to(of_gate.dtype.element_ty), mask=inside)


@triton.jit
def _turn_heads(
    x,
    grad,
    out,
    weight,
    cos,
    sin,
    factor,
    x_batch,
    x_head,
    x_place,
    g_batch,
    g_head,
    g_place,
    o_batch,
    o_head,
    o_place,
    angle_batch,
    angle_place,
    factor_batch,
    factor_place,
    length,
    heads,
    eps,
    D: tl.constexpr,
    ROTATED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    GROWS: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """All heads of one token. The first ROTATED dimensions are two parts of at most HALF lanes; the rest, at most REST
    lanes, is not rotated."""
    batch = (tl.program_id(0) // length).to(tl.int64)
    place = tl.program_id(0) % length
    half: tl.constexpr = ROTATED // 2
    lanes, number = tl.arange(0, HALF), tl.arange(0, HEADS)
    low, high = lanes, half + lanes
    if INTERLEAVED:
        low, high = 2 * lanes, 2 * lanes + 1
    is_lane = lanes < half
    inside = (number < heads)[:, None] & is_lane[None, :]
    at = x + batch * x_batch + place * x_place + number[:, None] * x_head
    to = out + batch * o_batch + place * o_place + number[:, None] * o_head
    of = grad + batch * g_batch + place * g_place + number[:, None] * g_head
    if HAS_ROPE:
        angle = batch * angle_batch + place * angle_place
        c = tl.load(cos + angle + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
        s = tl.load(sin + angle + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    if GROWS:
        grown = tl.load(factor + batch * factor_batch + place * factor_place).to(tl.float32)
    if REST > 0:
        behind = ROTATED + tl.arange(0, REST)
        is_behind = (number < heads)[:, None] & (behind < D)[None, :]
    if NORM != "":
        first = tl.load(at + low[None, :], mask=inside, other=0.0).to(tl.float32)
        second = tl.load(at + high[None, :], mask=inside, other=0.0).to(tl.float32)
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if REST > 0:
            rest = tl.load(at + behind[None, :], mask=is_behind, other=0.0).to(tl.float32)
            squares += tl.sum(rest * rest, 1)
        begin = number[:, None] * 0
        if NORM == "whole":
            begin = number[:, None] * D
            shrink = tl.rsqrt(tl.sum(squares, 0) / (heads * D) + eps)
        else:
            shrink = tl.rsqrt(squares / D + eps)[:, None]
        w_first = _scale_of(weight, begin + low[None, :], inside, PLUS_ONE)
        w_second = _scale_of(weight, begin + high[None, :], inside, PLUS_ONE)
        if REST > 0:
            w_rest = _scale_of(weight, begin + behind[None, :], is_behind, PLUS_ONE)
    if BACKWARD:
        g_first = tl.load(of + low[None, :], mask=inside, other=0.0).to(tl.float32)
        g_second = tl.load(of + high[None, :], mask=inside, other=0.0).to(tl.float32)
        if REST > 0:
            g_rest = tl.load(of + behind[None, :], mask=is_behind, other=0.0).to(tl.float32)
        if GROWS:
            g_first, g_second = g_first * grown, g_second * grown
            if REST > 0:
                g_rest *= grown
        if HAS_ROPE:
            g_first, g_second = g_first * c + g_second * s, g_second * c - g_first * s
        if NORM != "":
            g_first, g_second = g_first * w_first, g_second * w_second
            along = tl.sum(g_first * first, 1) + tl.sum(g_second * second, 1)
            if REST > 0:
                g_rest *= w_rest
                along += tl.sum(g_rest * rest, 1)
            if NORM == "whole":
                along = tl.sum(along, 0) * shrink * shrink / (heads * D)
            else:
                along = along[:, None] * shrink * shrink / D
            g_first, g_second = (g_first - first * along) * shrink, (g_second - second * along) * shrink
            if REST > 0:
                g_rest = (g_rest - rest * along) * shrink
        tl.store(to + low[None, :], g_first.to(out.dtype.element_ty), mask=inside)
        tl.store(to + high[None, :], g_second.to(out.dtype.element_ty), mask=inside)
        if REST > 0:
            tl.store(to + behind[None, :], g_rest.to(out.dtype.element_ty), mask=is_behind)
    else:
        if NORM != "":
            first = (first * shrink * w_first).to(out.dtype.element_ty).to(tl.float32)
            second = (second * shrink * w_second).to(out.dtype.element_ty).to(tl.float32)
            if REST > 0:
                rest = rest * shrink * w_rest
        else:
            first = tl.load(at + low[None, :], mask=inside, other=0.0).to(tl.float32)
            second = tl.load(at + high[None, :], mask=inside, other=0.0).to(tl.float32)
            if REST > 0:
                rest = tl.load(at + behind[None, :], mask=is_behind, other=0.0).to(tl.float32)
        if HAS_ROPE:
            first, second = first * c - second * s, second * c + first * s
        if GROWS:
            first, second = first * grown, second * grown
            if REST > 0:
                rest *= grown
        tl.store(to + low[None, :], first.to(out.dtype.element_ty), mask=inside)
        tl.store(to + high[None, :], second.to(out.dtype.element_ty), mask=inside)
        if REST > 0:
            tl.store(to + behind[None, :], rest.to(out.dtype.element_ty), mask=is_behind)
