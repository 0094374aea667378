"""How the products of a decode step are divided among a GPU's multiprocessors. (pure)"""

from __future__ import annotations

import math
from dataclasses import dataclass

TILE = 16
"""Columns per block of the CUDA kernels."""
CHUNK = 256
"""Elements of K that a warp reads at a time."""
MAX_WARPS = {1: 12, 2: 12}
"""Most warps in a block whose warps share K, by its number of 8-row tiles."""
MAX_TILES = 8
"""Most 8-row tiles in a block: more do not fit into registers."""
MANY_TILES = 4
"""From this many tiles on, the warps of a block share x instead of K."""
RESIDENT = {1: 16, 2: 12, 4: 16, 8: 12}
"""Warps that fit into a multiprocessor's registers, by the number of tiles."""
GATE_RESIDENT = 12
"""The same for the kernel `gate_up`, for any number of tiles."""
SHARED_BYTES = 48 << 10
STAGED_BYTES = 2 * 8 * CHUNK * 2
"""Shared memory for each 8-row tile of x: the chunk being read, and the next one being loaded."""
MAX_ROWS_A_BLOCK = 64
KEY_BLOCK = 64

CHUNK_CYCLES, ROUND_CYCLES, MERGE_CYCLES, PART_CYCLES = 225, 650, 0.22, 0.07
"""Cycles of a multiprocessor: for a chunk; waiting for its weights; merging one of a warp's sums with those of the
other warps; writing and rereading a row of a 16-column part. Fitted to one kind of GPU; only their ratios matter. For
the products of a 1.5B layer at 8 and 16 rows the chosen cut is the fastest measured or within 1 % of it, except gate
and up with adapters at 16 rows: 4.3 %."""
BUSY_WARPS = 12
"""Warps that keep a multiprocessor busy."""
MANY_CYCLES, COPY_CYCLES, MANY_ROUND_CYCLES, MANY_BUSY_WARPS = 450, 220, 3500, 4
"""The same costs for `many_cut_of`: for a chunk of 16 columns with 64 rows; copying a chunk of 8 rows of x; waiting for
a chunk; then the number of warps that keep a multiprocessor busy. At 32 and 64 rows the chosen cut is within 3.6 % of
the fastest measured."""


@dataclass(frozen=True)
class Cut:
    """splits: blocks that share K; chunks: a block's part of K, in chunks; warps: in a block, which share those
    chunks."""

    splits: int
    chunks: int
    warps: int


def tiles_of(rows: int) -> int:
    """Tiles of 8 rows in a block, a power of two."""
    return min(MAX_TILES, 1 << (math.ceil(rows / 8) - 1).bit_length())


def cut_of(blocks: int, inputs: int, floats: int, processors: int, warps: tuple[int, int], max_splits: int) -> Cut:
    """The cut with which the busiest multiprocessor finishes first.

    blocks: without a split; inputs: K; floats: sums held by a warp; warps: most in a block, and most that fit into a
    multiprocessor's registers.
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
    """The same for the kernel in which each warp of a block has a tile of 16 columns, and x is read once for all of
    them.

    tiles: of the weights and of the adapters, which never share a block; most: warps in a block; processors: their
    number, and the shared memory of one in bytes.
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
    """How Triton cuts a projection. words: pairs of weights read at a time; splits: portions of K."""

    columns: int
    words: int
    splits: int
    warps: int
    stages: int


def launch_for(columns: int, inputs: int, processors: int) -> Launch:
    """About two blocks per multiprocessor, as far as K can be split. columns: N; inputs: K."""
    block = 32
    words = 64 if inputs % 128 == 0 else 32
    pieces = inputs // 2 // words
    wanted = max(1, round(2 * processors * block / columns))
    splits = max(one for one in range(1, min(wanted, pieces) + 1) if pieces % one == 0)
    return Launch(block, words, splits, 4, 3)


def blocks_of(rows: int) -> tuple[int, int]:
    """(rows per block, blocks)"""
    block = min(MAX_ROWS_A_BLOCK, max(16, 1 << (rows - 1).bit_length()))
    return block, math.ceil(rows / block)


def key_splits(pairs: int, length: int, processors: int) -> int:
    """How many portions to split the keys into so that every multiprocessor has work: a power of two up to 16.

    pairs: of a row and a head of keys. Where they are two for each multiprocessor, or all keys are one block, there is
    one portion, and nothing to combine.
    """
    wanted = 1 if pairs >= 2 * processors else max(2, 2 * processors // pairs)
    useful = max(1, length // KEY_BLOCK)
    return min(16, 1 << (wanted.bit_length() - 1), 1 << (useful.bit_length() - 1))


def is_one_attention_launch(*, has_lanes: bool) -> bool:
    """Whether the kernel that attends to the keys also makes the queries and the new keys and values.

    Each portion of a row's keys then makes the same queries. That is little for any number of rows, as `key_splits`
    takes fewer portions for more of them. has_lanes: rows read the keys that others write in the same step, so all must
    be written before.
    """
    return not has_lanes
