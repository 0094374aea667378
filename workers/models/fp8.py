"""Products with frozen weights in 8 bits (FP8, e4m3) for passes that train: y = x W^T, and the gradient dx = dy W.

Both factors are rounded to e4m3 just before their product and divided by a scale, the largest number of their row: of a
token, and of an output or, for dx, an input of W, so that scales stay outside the sum (row-wise scaling). Products are
returned in bfloat16. Rounding a number moves it by 1/16 at most, 2.6 % in the root mean square whatever its scale, so a
product of two rounded factors is 3.7 % off, by norm. Finer scales (per block of 128, DeepSeek-V3, arXiv 2412.19437)
would only save numbers that are 2^15 times smaller than their row's largest. Gradients have 3 bits of fraction too:
with e5m2, whose range they do not need once each token has its scale, products would be 5.9 % off.

Adapters, attention, norms and the output head stay as they are. So do weights of a shape that the products do not take.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from workers.models import fused_layers, nf4, quantized

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number of e4m3."""
LEAST = 1e-30
"""Of rows with smaller numbers, this counts as the largest: zeros stay zeros."""
OLDEST = (8, 9)
"""Compute capability of the RTX 40 series, the first that multiplies in e4m3."""
MULTIPLE = 16
"""Both sides of a weight must be multiples of this."""
SCALES_READ = 256
"""PyTorch's kernels may read scales in groups of this many rows, past the last row. Room is made for whole groups."""


@dataclass(frozen=True)
class Rounded:
    """values * scales is a matrix. values: [N, K] e4m3, contiguous; scales: [N, 1] float32."""

    values: Tensor
    scales: Tensor


@cache
def problem_on(device: torch.device) -> str:
    """Why `device` cannot compute these products; empty if it can. On a CPU they are slow, for tests."""
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < OLDEST:
            has = f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}"
            return f"{has}, and products in 8 bits need {OLDEST[0]}.{OLDEST[1]} (RTX 40 series, Hopper or newer)"
        if not fused_layers.has_kernels(device):
            return "the Triton kernels of the layers do not run here"
    return fused_layers.problem_of(lambda: _agree(device))


def fits(base: Any) -> bool:
    """Whether products with the weight of this frozen linear layer are computed in 8 bits."""
    outputs, inputs = base.out_features, base.in_features
    # A block of NF4 must belong to one output.
    multiple = nf4.BLOCK if getattr(base.weight, "quant_state", None) is not None else MULTIPLE
    return not (outputs % MULTIPLE or inputs % multiple)


def outputs(rows: Tensor, bases: Sequence[Any]) -> list[Tensor]:
    """What each of `bases` computes of rows, [N, in] bfloat16: [N, out] each, with its bias."""
    x = rounded(rows) if any(map(fits, bases)) else None
    return [
        _product(x, weight_of(base, is_transposed=False), base.bias)
        if x is not None and fits(base)
        else linear(rows, quantized.weight_of(base, rows.dtype), base.bias)
        for base in bases
    ]


def of_rows(grads: Sequence[Tensor], bases: Sequence[Any]) -> Tensor:
    """The gradient of `rows`, [N, in], from those of `outputs`, [N, out] bfloat16 each; summed in bfloat16."""
    found: Tensor | None = None
    for base, grad in zip(bases, grads, strict=True):
        if fits(base):
            part = _product(rounded(grad), weight_of(base, is_transposed=True))
        else:
            part = grad @ quantized.weight_of(base, grad.dtype)
        found = part if found is None else found.add_(part)
    assert found is not None
    return found


def rounded(x: Tensor) -> Rounded:
    """x, [N, K], with a scale for each row. A number that is not finite makes its whole row not finite in products."""
    values, scales = torch.empty_like(x, dtype=DTYPE, memory_format=torch.contiguous_format), _scales(len(x), x)
    if _has_kernels(x):
        from workers.models.fp8_kernels import round_rows

        round_rows(x.contiguous(), values, scales, largest=LARGEST, least=LEAST)
        return Rounded(values, scales)
    wide = x.float()
    torch.div(wide.abs().amax(1, keepdim=True).clamp_(min=LEAST), LARGEST, out=scales)
    return Rounded(values.copy_(wide / scales), scales)


def weight_of(base: Any, *, is_transposed: bool) -> Rounded:
    """The weight of a frozen linear layer, [out, in], or [in, out], rounded anew from what the layer holds: a tensor
    that the caller owns."""
    weight, state = base.weight.detach(), getattr(base.weight, "quant_state", None)
    shape, scales = weight.shape if state is None else state.shape, scales_of(base)[is_transposed]
    if _has_kernels(weight):
        from workers.models.fp8_kernels import round_weight

        values = weight.new_empty(shape[::-1] if is_transposed else shape, dtype=DTYPE)
        blocks = None if state is None else quantized.scales_of(base)
        round_weight(weight, blocks, scales, values, shape, is_transposed=is_transposed)
        return Rounded(values, scales)
    wide = quantized.weight_of(base, torch.float32).float()
    return Rounded(((wide.t() if is_transposed else wide) / scales).to(DTYPE).contiguous(), scales)


def scales_of(base: Any) -> tuple[Tensor, Tensor]:
    """The scales of its weight by output, [out, 1], and by input, [in, 1], float32; computed once.

    In NF4 each block has a number as large as its scale, so those of an output are exact. An input gets the largest
    scale of the blocks that it is part of, which its own numbers may not reach: that costs range, not precision.
    """
    if not hasattr(base, "fp8_scales"):
        with torch.inference_mode(False), torch.no_grad():
            weight = base.weight
            if (state := getattr(weight, "quant_state", None)) is None:
                large = weight.detach().abs()
                by_output, by_input = large.amax(1).float(), large.amax(0).float()
            else:
                blocks = quantized.scales_of(base).abs().view(state.shape[0], -1)
                by_output, by_input = blocks.amax(1), blocks.amax(0).repeat_interleave(nf4.BLOCK)
            found = []
            for each in (by_output, by_input):
                found.append(_scales(len(each), each))
                torch.div(each.clamp(min=LEAST)[:, None], LARGEST, out=found[-1])
            base.fp8_scales = tuple(found)
    pair: tuple[Tensor, Tensor] = base.fp8_scales
    return pair


def _scales(count: int, like: Tensor) -> Tensor:
    """Room for the scales of `count` rows, [count, 1]."""
    return like.new_empty(-(-count // SCALES_READ) * SCALES_READ, 1, dtype=torch.float32)[:count]


def _has_kernels(like: Tensor) -> bool:
    return like.is_cuda and fused_layers.has_kernels(like.device)


def _product(x: Rounded, weight: Rounded, bias: Tensor | None = None) -> Tensor:
    """x [N, K] times the transposed weight, [M, K]: [N, M] bfloat16. Sums are kept in float32, not in the shorter
    registers of Hopper's fast mode."""
    return torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x.scales,
        scale_b=weight.scales.t(),
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )


def _agree(device: torch.device) -> bool:
    """Whether products on `device` are those of their rounded factors, by what PyTorch makes of these on a CPU."""
    draws = torch.Generator().manual_seed(0)
    # Made without values: drawing them would change the run's random stream.
    base = torch.nn.Linear(128, 96, dtype=torch.bfloat16, device="meta").to_empty(device="cpu")
    for parameter in base.requires_grad_(False).parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draws))
    x, grad = (torch.randn(48, width, generator=draws).bfloat16() for width in (128, 96))
    there = copy.deepcopy(base).to(device)
    pairs = (
        (outputs(x.to(device), [there])[0], _by_hand(x, base, is_transposed=False) + base.bias.float()),
        (
            of_rows([grad.to(device)], [there]),
            _by_hand(grad, base, is_transposed=True),
        ),
    )
    return all(float((one.cpu().float() - exact).norm()) < 0.01 * float(exact.norm()) for one, exact in pairs)


def _by_hand(x: Tensor, base: Any, *, is_transposed: bool) -> Tensor:
    """The product of the factors that `rounded` and `weight_of` make on a CPU, in float32."""
    first, second = (
        one.values.float() * one.scales for one in (rounded(x), weight_of(base, is_transposed=is_transposed))
    )
    return first @ second.t()
