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

from workers.rollout.graph import cuts

ROWS, FRAGMENTS = tl.constexpr(cuts.ROWS), tl.constexpr(cuts.FRAGMENTS)
RANKS = tl.constexpr(16)
"""Of adapters that `whole_tile` adds at a time: what the tensor cores take."""


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
def place_of_x(row, columns, K, LAYOUT: tl.constexpr, IN_EIGHTS: tl.constexpr = True):
    """Address of x[row, columns], [C] or [M, C]: in rows of K, as FRAGMENTS (`place` in matmul.cu), or as MATRICES, 8
    rows times 4 pairs of neighbours that are 64 apart.

    IN_EIGHTS: each eight columns from a multiple of eight on follow one another. Triton would write each by itself.
    """
    if LAYOUT == ROWS:
        return row * K + columns
    piece = ((row // 8) * ((K + 255) // 256) + columns // 256) * 8 + columns % 64 // 8
    lane = row % 8 * 4 + columns % 256 // 64
    if LAYOUT == FRAGMENTS:
        place = (piece * 32 + lane) * 8 + columns % 8
    else:
        place = ((piece * 4 + columns % 8 // 2) * 32 + lane) * 2 + columns % 2
    if IN_EIGHTS:
        neighbours: tl.constexpr = 8 if LAYOUT == FRAGMENTS else 2
        if len(place.shape) == 1:
            place = tl.max_contiguous(tl.multiple_of(place, neighbours), neighbours)
        else:
            place = tl.max_contiguous(tl.multiple_of(place, [1, neighbours]), [1, neighbours])
    return place


@triton.jit
def sum_of(parts, row, columns, inside, num_rows, width, SPLITS: tl.constexpr):
    """Sum of a projection's parts, float32 in the shape of `columns`, which may be one. Move `parts` by what is no
    constant of one column, so that loads of several share an address."""
    total = 0.0
    for split in tl.static_range(SPLITS):  # unrolled, so that loads do not wait for each other
        total += tl.load(parts + (split * num_rows + row) * width + columns, mask=inside, other=0.0)
    return total


@triton.jit
def rows_of_b(lora_b, columns, inside, N, first, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Of an adapter's B, [RANK, N], the columns of RANKS rows, the first of which is `first`; zeros where there are
    none."""
    ranks = first + tl.arange(0, RANKS)
    is_there = (ranks < RANK)[:, None] & inside[None, :]
    return tl.load(lora_b + ranks[:, None] * N + columns[None, :], mask=is_there, other=0.0)


@triton.jit
def whole(
    parts,
    row,
    columns,
    inside,
    num_rows,
    width,
    N,
    lora_b,
    b,
    lora_scale,
    segment,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
):
    """Sum of a projection's parts with its adapter, float32 [C], for one row. columns: below N; b: the first of
    `rows_of_b`, which is there before the parts are, if there is an adapter; segment: the matrix they belong to."""
    total = sum_of(parts, row, columns, inside, num_rows, width, SPLITS)
    for first in tl.static_range(0, RANK, RANKS):
        ranks = first + tl.arange(0, RANKS)
        t = sum_of(parts + N + segment * RANK, row, ranks, ranks < RANK, num_rows, width, SPLITS)
        if first > 0:
            b = rows_of_b(lora_b, columns, inside, N, first, RANK, RANKS)
        total += tl.sum(t[:, None] * b.to(tl.float32), 0) * lora_scale
    return total


@triton.jit
def whole_tile(
    parts,
    rows,
    columns,
    inside,
    num_rows,
    width,
    N,
    lora_b,
    b,
    lora_scale,
    segment,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
):
    """The same of several rows, [M], as [M, C]. B is read once for all of them, and so are their sums of x A^T."""
    is_row = (rows < num_rows)[:, None]
    total = sum_of(parts, rows[:, None], columns[None, :], is_row & inside[None, :], num_rows, width, SPLITS)
    for first in tl.static_range(0, RANK, RANKS):
        ranks = (first + tl.arange(0, RANKS))[None, :]
        t = sum_of(parts + N + segment * RANK, rows[:, None], ranks, is_row & (ranks < RANK), num_rows, width, SPLITS)
        if first > 0:
            b = rows_of_b(lora_b, columns, inside, N, first, RANK, RANKS)
        # Of float32 three numbers in bfloat16 hold all bits, and the tensor cores' products with B are exact.
        high = t.to(tl.bfloat16)
        rest = t - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        total += (tl.dot(low, b) + tl.dot(middle, b) + tl.dot(high, b)) * lora_scale
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
