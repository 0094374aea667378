"""What the Triton kernels of a decode step have in common.

Sums over split K have a fixed order, so equal inputs give equal bits. A projection writes float32 parts, [splits, rows,
N + R]; the last R columns are x A^T of the adapters. The kernel that reads them also adds up the parts, the bias and
the adapters' B, so none of these needs a launch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def begin_chained(CHAINED: tl.constexpr):
    """Allow the next kernel's launch, and wait for the writes of earlier kernels (`wait_for_previous` in matmul.cu).

    Before this call, read only what no chained kernel writes: weights, and the rows' positions (only `draw` moves
    them).
    """
    if CHAINED:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


@triton.jit
def place_of_x(row, columns, K, LAYOUT: tl.constexpr):
    """Address of x[row, columns]: in rows of K, as FRAGMENTS (`place` in matmul.cu), or as MATRICES, 8 rows times 4
    pairs of neighbours that are 64 apart."""
    if LAYOUT == 0:
        return row * K + columns
    piece = ((row // 8) * ((K + 255) // 256) + columns // 256) * 8 + columns % 64 // 8
    lane = row % 8 * 4 + columns % 256 // 64
    if LAYOUT == 1:
        return (piece * 32 + lane) * 8 + columns % 8
    return ((piece * 4 + columns % 8 // 2) * 32 + lane) * 2 + columns % 2


@triton.jit
def sum_of(parts, row, columns, inside, num_rows, width, SPLITS: tl.constexpr):
    """Sum of a projection's parts, float32 in the shape of `columns`, which may be one. Move `parts` by what is no
    constant of one column, so that loads of several share an address."""
    total = 0.0
    for split in tl.static_range(SPLITS):  # unrolled, so that loads do not wait for each other
        total += tl.load(parts + (split * num_rows + row) * width + columns, mask=inside, other=0.0)
    return total


@triton.jit
def whole(
    parts,
    row,
    columns,
    is_row,
    is_column,
    num_rows,
    width,
    N,
    R,
    lora_b,
    lora_scale,
    segment,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Sum of a projection's parts with its adapter, float32. row, columns: one row, or several as [M, 1] and [1, C],
    for which B is read once; is_row, is_column: masks of their shapes; columns: below N; segment: the matrix they
    belong to; UNROLL: ranks whose loads do not wait for each other."""
    total = sum_of(parts, row, columns, is_row & is_column, num_rows, width, SPLITS)
    if RANK > 0:
        added = tl.zeros_like(total)
        for rank in tl.range(0, RANK, loop_unroll_factor=UNROLL):
            t = sum_of(parts + N + segment * RANK, row, rank, is_row, num_rows, width, SPLITS)
            added += t * tl.load(lora_b + rank * N + columns, mask=is_column, other=0.0).to(tl.float32)
        total += added * lora_scale
    return total


@triton.jit
def is_last_of(arrivals, number, COUNT: tl.constexpr):
    """Whether this program is the last of COUNT to come here. Then it sees, past L1 (`.cg`), what the others stored
    before, and the counter, [number] of `arrivals`, is zero again, as every launch finds it."""
    tl.debug_barrier()  # one thread counts for all, so all must have stored
    is_last = tl.atomic_add(arrivals + number, 1, sem="acq_rel", scope="gpu") == COUNT - 1
    if is_last:
        tl.store(arrivals + number, 0)
    return is_last


@triton.jit
def capped(x, cap):
    """cap * tanh(x / cap)"""
    return cap * (1.0 - 2.0 / (tl.exp(x * (2.0 / cap)) + 1.0))
