"""Triton kernels for a decoder layer's small operations and for 4-bit weights. Import it only where Triton runs.

Each is one launch where plain modules take five to ten, and saves only its inputs for the backward pass. Sums and
products are in float32; results are rounded once.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from workers.models.nf4 import levels

BLOCK = 1024


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


class Norm(torch.autograd.Function):
    """RMS norm of x, [..., H] in float32, returned in the dtype of its frozen weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        out, width = torch.empty_like(x, dtype=weight.dtype), x.shape[-1]
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _norm[(x.numel() // width,)](x, weight, out, width, eps, BLOCK=triton.next_power_of_2(width), num_warps=8)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x, width = torch.empty_like(x), x.shape[-1]
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _norm_backward[(x.numel() // width,)](
                grad.contiguous(), x, weight, of_x, width, ctx.eps, BLOCK=triton.next_power_of_2(width), num_warps=8
            )
        return of_x, None, None


class Gated(torch.autograd.Function):
    """silu(gate) * up, of the same shape and both contiguous."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        with torch.cuda.device_of(gate):  # type: ignore[no-untyped-call]  # a kernel runs on the current device
            _gate[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, out, gate.numel(), BLOCK=BLOCK)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
        with torch.cuda.device_of(gate):  # type: ignore[no-untyped-call]
            _gate_backward[(triton.cdiv(gate.numel(), BLOCK),)](
                grad.contiguous(), gate, up, of_gate, of_up, gate.numel(), BLOCK=BLOCK
            )
        return of_gate, of_up


def dequantized(codes: Tensor, scales: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """An NF4 weight in `dtype`: level times scale in float32, rounded once. codes: uint8, two per byte; scales:
    float32, one per 64 weights."""
    out = torch.empty(shape, dtype=dtype, device=codes.device)
    with torch.cuda.device_of(codes):  # type: ignore[no-untyped-call]
        _dequantize[(triton.cdiv(out.numel(), 2 * BLOCK),)](
            codes, scales, _levels(codes.device), out, out.numel(), BLOCK=BLOCK
        )
    return out


@cache
def _levels(device: torch.device) -> Tensor:
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
def _norm(x, weight, out, width, eps, BLOCK: tl.constexpr):
    """One program per row."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    base = tl.program_id(0).to(tl.int64) * width
    values = tl.load(x + base + columns, mask=inside, other=0.0)
    w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    tl.store(out + base + columns, (values * scale * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(grad, x, weight, of_x, width, eps, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    base = tl.program_id(0).to(tl.int64) * width
    values = tl.load(x + base + columns, mask=inside, other=0.0)
    g = tl.load(grad + base + columns, mask=inside, other=0.0).to(tl.float32)
    g *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    along = tl.sum(g * values, 0) * scale * scale / width
    tl.store(of_x + base + columns, (g - values * along) * scale, mask=inside)


@triton.jit
def _gate(gate, up, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    silu = (g / (1.0 + tl.exp(-g))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + at, (silu * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gate_backward(grad, gate, up, of_gate, of_up, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    d = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-g))
    silu = (g * sigmoid).to(of_up.dtype.element_ty).to(tl.float32)
    tl.store(of_up + at, (d * silu).to(of_up.dtype.element_ty), mask=inside)
    tl.store(of_gate + at, (d * u * sigmoid * (1.0 + g * (1.0 - sigmoid))).to(of_gate.dtype.element_ty), mask=inside)
