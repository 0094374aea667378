"""How the products of a decode step are cut up for a GPU's processors. (pure)"""

from __future__ import annotations

import math
from dataclasses import dataclass

TILE = 16
"""Columns of a block of the CUDA kernels."""
CHUNK = 256
"""Of K, that a warp reads at one time."""
MAX_WARPS = {1: 12, 2: 12}
"""Of a block whose warps share K, by its tiles of 8 rows."""
MAX_TILES = 8
"""Of 8 rows, that a block multiplies with: more do not fit the registers."""
MANY_TILES = 4
"""From so many on, the warps of a block share x instead."""
RESIDENT = {1: 16, 2: 12, 4: 16, 8: 12}
"""Warps that the registers of a processor hold, likewise."""
GATE_RESIDENT = 12
"""Of the kernel `gate_up`, whatever its tiles."""
SHARED_BYTES = 48 << 10
STAGED_BYTES = 2 * 8 * CHUNK * 2
"""Of shared memory for each tile of 8 rows of x: a chunk that is read, and the next one on its way."""
MAX_ROWS_A_BLOCK = 64
KEY_BLOCK = 64

CHUNK_CYCLES, ROUND_CYCLES, MERGE_CYCLES, PART_CYCLES = 225, 650, 0.22, 0.07
"""Of a processor for a chunk; of waiting for its weights; of a sum of a warp, added to those of the others; of a row of
a part of 16 columns, written and read again. Fitted to one kind of GPU, and only their relation counts. For the
products of a 1.5B layer at 8 and 16 rows the cut is the fastest that was measured or within 1 %, but gate and up with
adapters at 16 rows 4.3 %."""
BUSY_WARPS = 12
"""That keep a processor busy."""
MANY_CYCLES, COPY_CYCLES, MANY_ROUND_CYCLES, MANY_BUSY_WARPS = 450, 220, 3500, 4
"""For `many_cut_of`: of a chunk of 16 columns with 64 rows; of copying a chunk of 8 rows of x; of waiting for a chunk;
and so many warps keep a processor busy. At 32 and 64 rows the cut is within 3.6 % of the fastest that was measured."""


@dataclass(frozen=True)
class Cut:
    """splits: blocks that share K; chunks: of K, a block's part; warps: of a block, that share these."""

    splits: int
    chunks: int
    warps: int


def tiles_of(rows: int) -> int:
    """Tiles of 8 rows in a block, a power of two."""
    return min(MAX_TILES, 1 << (math.ceil(rows / 8) - 1).bit_length())


def cut_of(blocks: int, inputs: int, floats: int, processors: int, warps: tuple[int, int], max_splits: int) -> Cut:
    """The cut under which the busiest processor is done first.

    blocks: without a split; inputs: K; floats: sums of a warp; warps: most of a block, and those that a
    processor's registers hold.
    """
    chunks, (most, held) = math.ceil(inputs / CHUNK), warps
    best: tuple[float, Cut] | None = None
    for splits in range(1, min(max_splits, chunks) + 1):
        a_block = math.ceil(chunks / splits)
        busiest = math.ceil(blocks * splits / processors)
        for count in range(1, min(most, a_block, SHARED_BYTES // (4 * floats)) + 1):
            rounds = math.ceil(a_block / count)
            resident = min(busiest, max(1, held // count))
            idle = max(1.0, BUSY_WARPS / (resident * count))
            waiting = math.ceil(busiest / resident) * rounds * ROUND_CYCLES
            sums = floats * (busiest * count * MERGE_CYCLES + splits * blocks / TILE * PART_CYCLES)
            cost = busiest * a_block * CHUNK_CYCLES * idle + waiting + sums
            if best is None or cost < best[0]:
                best = cost, Cut(math.ceil(chunks / a_block), a_block, count)
    assert best is not None
    return best[1]


def many_cut_of(
    tiles: tuple[int, int], inputs: int, rows: int, most: int, processors: tuple[int, int], max_splits: int
) -> Cut:
    """The same for the kernel whose blocks have a tile of 16 columns for each warp, and read x once for all of them.

    tiles: of the weights and of the adapters, which no block holds together; most: warps of a block; processors: how
    many, and the shared memory of one in bytes.
    """
    chunks, tall = math.ceil(inputs / CHUNK), tiles_of(rows)
    layers = math.ceil(rows / (8 * tall))
    fitting = max(1, processors[1] // (STAGED_BYTES * tall))
    best: tuple[float, Cut] | None = None
    for warps in range(1, most + 1):
        blocks = sum(math.ceil(count / warps) for count in tiles) * layers
        resident = min(fitting, max(1, RESIDENT[tall] // warps))
        for splits in range(1, min(max_splits, chunks) + 1):
            a_block = math.ceil(chunks / splits)
            busiest = math.ceil(blocks * splits / processors[0])
            idle = max(1.0, MANY_BUSY_WARPS / (min(resident, busiest) * warps))
            a_chunk = max(warps * MANY_CYCLES * tall / MAX_TILES * idle, tall * COPY_CYCLES)
            waiting = math.ceil(busiest / resident) * a_block * MANY_ROUND_CYCLES
            cost = busiest * a_block * a_chunk + waiting + splits * sum(tiles) * rows * PART_CYCLES
            if best is None or cost < best[0]:
                best = cost, Cut(math.ceil(chunks / a_block), a_block, warps)
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Launch:
    """How Triton's projections are cut. words: of two weights each, read at one time; splits: portions of K."""

    columns: int
    words: int
    splits: int
    warps: int
    stages: int


def launch_for(columns: int, inputs: int, processors: int) -> Launch:
    """About two blocks for each processor, where K can be split so far. columns: N; inputs: K."""
    block = 32
    words = 64 if inputs % 128 == 0 else 32
    pieces = inputs // 2 // words
    wanted = max(1, round(2 * processors * block / columns))
    splits = max(one for one in range(1, min(wanted, pieces) + 1) if pieces % one == 0)
    return Launch(block, words, splits, 4, 3)


def blocks_of(rows: int) -> tuple[int, int]:
    """(rows of a block, blocks)"""
    block = min(MAX_ROWS_A_BLOCK, max(16, 1 << (rows - 1).bit_length()))
    return block, math.ceil(rows / block)


def key_splits(pairs: int, length: int, processors: int) -> int:
    """Portions of the keys, so that all processors have some: a power of two, 2 to 16."""
    wanted = max(2, 2 * processors // pairs)
    useful = max(2, length // KEY_BLOCK)
    return min(16, 1 << (wanted.bit_length() - 1), 1 << (useful - 1).bit_length())
