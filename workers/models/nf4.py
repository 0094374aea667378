"""NF4 with double-quantised scales (QLoRA, arXiv 2305.14314) in plain PyTorch: the reference for every kernel.

The layout is that of bitsandbytes: blocks of 64 along the flattened weight, 4-bit codes with the first element in the
high nibble, an 8-bit scale per block, and a float32 scale per 256 of those. It is not optimised for speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

BLOCK = 64
"""Weights that share a scale."""
SCALE_BLOCK = 256
"""Block scales that share a second-level scale."""
LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of a normal distribution, rounded to float32 as in the paper's code."""


@dataclass(frozen=True)
class Quantized:
    """A weight in 4 bits. n: its number of elements; m = ceil(n / 64) blocks."""

    packed: Tensor
    """uint8, [ceil(n / 2)]: two codes per byte."""
    scale_codes: Tensor
    """uint8, [m]: indices into `scale_levels()`."""
    scale_scales: Tensor
    """float32, [ceil(m / 256)]."""
    offset: Tensor
    """float32, []: mean of the scales, subtracted before they were quantised."""
    shape: torch.Size

    @property
    def bytes(self) -> int:
        parts = (self.packed, self.scale_codes, self.scale_scales, self.offset)
        return sum(part.numel() * part.element_size() for part in parts)


@cache
def scale_levels() -> Tensor:
    """The 256 values of 8-bit dynamic quantisation, rising: seven decades, each twice as fine as the one below."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        means = (edges[:-1] + edges[1:]) / 2.0
        scaled = (10.0 ** (exponent - 6) * means).tolist()
        values += [*scaled, *(-one for one in scaled)]
    return torch.tensor(sorted(values), dtype=torch.float32)


@cache
def levels() -> Tensor:
    return torch.tensor(LEVELS, dtype=torch.float32)


def quantize(weight: Tensor) -> Quantized:
    """`weight` in 4 bits; any shape and floating type."""
    flat = weight.detach().reshape(-1).float()
    codes, scales = _codes(flat, BLOCK, levels())
    offset = scales.mean()
    scale_codes, scale_scales = _codes(scales - offset, SCALE_BLOCK, scale_levels())
    return Quantized(pack(codes), scale_codes, scale_scales, offset, weight.shape)


def scales_of(quantized: Quantized) -> Tensor:
    """The scale of each block, [m], float32."""
    values = scale_levels().to(quantized.scale_codes.device)[quantized.scale_codes.long()]
    repeated = quantized.scale_scales.repeat_interleave(SCALE_BLOCK)[: len(values)]
    return values * repeated + quantized.offset


def dequantize(quantized: Quantized, dtype: torch.dtype = torch.float32) -> Tensor:
    """The dequantised weight: level times scale in float32, rounded to `dtype`."""
    codes = unpack(quantized.packed, quantized.shape.numel())
    scales = scales_of(quantized).repeat_interleave(BLOCK)[: len(codes)]
    return (levels().to(codes.device)[codes.long()] * scales).to(dtype).view(quantized.shape)


def pack(codes: Tensor) -> Tensor:
    """uint8 codes below 16, [n] -> [ceil(n / 2)]; the first of a pair in the high nibble. (pure)"""
    if len(codes) % 2:
        codes = torch.cat((codes, codes.new_full((1,), LEVELS.index(0.0))))
    return (codes[::2] << 4) | codes[1::2]


def unpack(packed: Tensor, count: int) -> Tensor:
    """The first `count` codes, uint8. (pure)"""
    return torch.stack((packed >> 4, packed & 0xF), dim=1).view(-1)[:count]


def _codes(flat: Tensor, block: int, table: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the nearest values in a rising table, and each block's largest absolute value. A tie takes the lower
    index. (pure)"""
    padded = nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    largest = padded.abs().amax(dim=1)
    scaled = (padded * (1.0 / largest.clamp(min=1e-38))[:, None]).clamp(-1, 1)
    table = table.to(flat.device)
    bounds = (table[:-1] + table[1:]) / 2
    codes = torch.bucketize(scaled.view(-1)[: len(flat)], bounds).to(torch.uint8)
    return codes, largest
