"""Triton kernels that round to 8 bits (e4m3): activations by row, and frozen weights in either layout. Import it only
where Triton runs.

A weight is rounded anew for each product: that reads half a byte of an NF4 weight and writes one, which is little
beside a product over thousands of tokens.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.models.layer_kernels import levels_on
from workers.models.nf4 import BLOCK

ROWS = 128
"""Outputs of a weight that a program rounds, for `BLOCK` inputs of each."""


def round_rows(x: Tensor, values: Tensor, scales: Tensor, *, largest: float, least: float) -> None:
    """Fill `values`, [N, K] e4m3, and `scales`, [N, 1] float32, from x, [N, K], all contiguous: a row's largest number
    becomes `largest`. least: taken for the largest number of a smaller row."""
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _round_rows[(len(x),)](
            x, values, scales, width, largest, least, BLOCK=block, num_warps=min(16, max(4, block // 1024))
        )


def round_weight(
    weight: Tensor, blocks: Tensor | None, scales: Tensor, values: Tensor, shape: torch.Size, *, is_transposed: bool
) -> None:
    """Fill `values`, e4m3, from a weight of `shape`, [out, in], divided by `scales`: float32, [out], or [in] if
    `values` is the transposed weight, [in, out].

    weight: in 16 or 32 bits; with `blocks`, its NF4 codes, two per byte, and the float32 scale of each 64, which do not
    cross rows."""
    rows, columns = shape
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(columns, BLOCK))
    with torch.cuda.device_of(weight):  # type: ignore[no-untyped-call]
        _round_weight[grid](
            weight,
            scales if blocks is None else blocks,
            levels_on(weight.device),
            scales,
            values,
            rows,
            columns,
            IS_NF4=blocks is not None,
            IS_TRANSPOSED=is_transposed,
            ROWS=ROWS,
            BLOCK=BLOCK,
            num_warps=8,
        )


@triton.jit
def _round_rows(x, out, scales, width, largest, least, BLOCK: tl.constexpr):
    """One program per row."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    base = tl.program_id(0).to(tl.int64) * width
    values = tl.load(x + base + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), 0), least) / largest
    tl.store(scales + tl.program_id(0), scale)
    tl.store(out + base + columns, (values / scale).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _round_weight(
    weight,
    blocks,
    levels,
    scales,
    out,
    rows,
    columns,
    IS_NF4: tl.constexpr,
    IS_TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per tile of ROWS outputs and BLOCK inputs."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    has_row, has_column = row < rows, column < columns
    inside = has_row[:, None] & has_column[None, :]
    if IS_NF4:
        byte = tl.program_id(1) * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        at = row[:, None] * (columns // 2) + byte[None, :]
        pair = tl.load(weight + at, mask=has_row[:, None], other=0).to(tl.int32)
        block = tl.load(blocks + row * (columns // BLOCK) + tl.program_id(1), mask=has_row, other=0.0)
        values = tl.interleave(tl.load(levels + (pair >> 4)), tl.load(levels + (pair & 15))) * block[:, None]
    else:
        values = tl.load(weight + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if IS_TRANSPOSED:
        scale = tl.load(scales + column, mask=has_column, other=1.0)
        found = tl.trans((values / scale[None, :]).to(out.dtype.element_ty))
        to = out + column.to(tl.int64)[:, None] * rows + row[None, :]
        tl.store(to, found, mask=has_column[:, None] & has_row[None, :])
    else:
        scale = tl.load(scales + row, mask=has_row, other=1.0)
        found = (values / scale[:, None]).to(out.dtype.element_ty)
        tl.store(out + row[:, None] * columns + column[None, :], found, mask=inside)
