"""How the products of a decode step are divided among a GPU's multiprocessors. (pure)

A model of a multiprocessor's time puts the ways to divide a product into order. The first few are then measured on the
card at hand (`tuned.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

ROWS, FRAGMENTS, MATRICES = range(3)
"""How a product's inputs are laid out: row by row, or for the tensor cores of one warp or of four (`place_of_x`)."""
TILE = 16
"""Columns per block of the CUDA kernels."""
CHUNK = 256
"""Elements of K that a warp reads at a time."""
MAX_WARPS = 12
"""Most warps in a block of the kernels for few rows: `__launch_bounds__` in matmul.cu."""
GATE_WARPS = 18
"""The same of `gate_up` for NF4 and one tile of 8 rows, which needs fewer registers."""
RANKED, SEVERAL = 5, 4
"""How many cuts are measured: with one tile of weights in a block, and with several."""
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
MANY_KEYS, RESIDENT_PORTIONS = 2048, 4
"""From how many keys on portions are made smaller than needed to give each multiprocessor two; and how many of them a
multiprocessor holds."""
MOST_REPEATED = 128
"""Ranks of adapters that a row's programs add to its queries, all together, rather than let another kernel do so."""

CHUNK_CYCLES, ROUND_CYCLES, MERGE_CYCLES, PART_CYCLES = 225, 650, 0.22, 0.07
"""Cycles of a multiprocessor: for a chunk; waiting for its weights; merging one of a warp's sums with those of the
other warps; writing and rereading a row of a 16-column part. Fitted to one kind of GPU; only their ratios matter. For
the products of a 1.5B layer at 8 and 16 rows the chosen cut is the fastest measured or within 1 % of it, except gate
and up with adapters at 16 rows: 4.3 %."""
BUSY_WARPS = 12
"""Warps that keep a multiprocessor busy."""
MANY_CYCLES, COPY_CYCLES, MANY_ROUND_CYCLES, MANY_BUSY_WARPS = 450, 220, 3500, 4
"""The same costs for `many_cuts`: for a chunk of 16 columns with 64 rows; copying a chunk of 8 rows of x; waiting for
a chunk; then the number of warps that keep a multiprocessor busy. At 32 and 64 rows the chosen cut is within 3.6 % of
the fastest measured."""


@dataclass(frozen=True)
class Cut:
    """splits: blocks that share K; chunks: a block's part of K, in chunks; warps: that share those chunks, or with many
    rows the tiles of weights; groups: of such warps in a block, with few rows, each with tiles of its own; tiles: of
    weights in such a block."""

    splits: int
    chunks: int
    warps: int
    groups: int = 1
    tiles: int = 1


def tiles_of(rows: int) -> int:
    """Tiles of 8 rows in a block, a power of two."""
    return min(MAX_TILES, 1 << (math.ceil(rows / 8) - 1).bit_length())


@cache
def few_cuts(
    tiles: tuple[int, int],
    inputs: int,
    floats: tuple[int, int],
    processors: int,
    warps: tuple[int, int],
    max_splits: int,
) -> Sequence[Cut]:
    """Cuts for few rows, those first with which the busiest multiprocessor should finish first.

    tiles: of the weights and of the adapters, which never share a block; inputs: K; floats: in shared memory, a warp's
    sums of a tile, and what else a tile needs; warps: most in a block, and most that fit into a multiprocessor's
    registers.
    """
    chunks, (most, held), blocks, (of_warp, _) = math.ceil(inputs / CHUNK), warps, sum(tiles), floats
    ranked: dict[Cut, float] = {}
    for splits in range(1, min(max_splits, chunks) + 1):
        a_block = math.ceil(chunks / splits)
        busiest = math.ceil(blocks * splits / processors)
        for count in range(1, min(most, a_block) + 1):
            rounds = math.ceil(a_block / count)
            resident = min(busiest, max(1, held // count))
            idle = max(1.0, BUSY_WARPS / (resident * count))
            waiting = math.ceil(busiest / resident) * rounds * ROUND_CYCLES
            sums = of_warp * (busiest * count * MERGE_CYCLES + splits * blocks / TILE * PART_CYCLES)
            cost = busiest * a_block * CHUNK_CYCLES * idle + waiting + sums
            ranked.setdefault(Cut(math.ceil(chunks / a_block), a_block, count), cost)
    best = sorted(ranked, key=lambda cut: ranked[cut])[:RANKED]
    return [*best, *_with_several_tiles(best[0], blocks, floats, processors, most)]


def _with_several_tiles(best: Cut, blocks: int, floats: tuple[int, int], processors: int, most: int) -> list[Cut]:
    """Cuts whose blocks, one to three for each multiprocessor, keep their part of x for all tiles of weights."""
    warps = math.ceil(best.chunks / math.ceil(best.chunks / most))
    found: list[Cut] = []
    for resident in (1, 2, 3):
        for groups in range(1, most // warps + 1):
            tiles = math.ceil(blocks * best.splits / (resident * processors) / groups) * groups
            cut = Cut(best.splits, best.chunks, warps, groups, tiles)
            if tiles > groups and 4 * tiles * (floats[0] * warps + floats[1]) <= SHARED_BYTES and cut not in found:
                found.append(cut)
    return found[:SEVERAL]


@cache
def many_cuts(
    tiles: tuple[int, int],
    inputs: int,
    rows: int,
    most: int,
    processors: tuple[int, int],
    max_splits: int,
    step: int = 1,
) -> Sequence[Cut]:
    """The same for the kernel in which each warp of a block has a tile of 16 columns, and x is read once for all of
    them.

    most: warps in a block; processors: their number, and the shared memory of one in bytes; step: of the number of
    warps.
    """
    chunks, tall = math.ceil(inputs / CHUNK), tiles_of(rows)
    layers = math.ceil(rows / (8 * tall))
    fitting = max(1, processors[1] // (STAGED_BYTES * tall))
    ranked: dict[Cut, float] = {}
    for warps in range(step, most + 1, step):
        blocks = sum(math.ceil(count / warps) for count in tiles) * layers
        resident = min(fitting, max(1, RESIDENT[tall] // warps))
        for splits in range(1, min(max_splits, chunks) + 1):
            a_block = math.ceil(chunks / splits)
            busiest = math.ceil(blocks * splits / processors[0])
            idle = max(1.0, MANY_BUSY_WARPS / (min(resident, busiest) * warps))
            a_chunk = max(warps * MANY_CYCLES * tall / MAX_TILES * idle, tall * COPY_CYCLES)
            waiting = math.ceil(busiest / resident) * a_block * MANY_ROUND_CYCLES
            cost = busiest * a_block * a_chunk + waiting + splits * sum(tiles) * rows * PART_CYCLES
            ranked.setdefault(Cut(math.ceil(chunks / a_block), a_block, warps), cost)
    return sorted(ranked, key=lambda cut: ranked[cut])[:RANKED]


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
    one portion, and nothing to combine. Of many keys there are more portions, as long as the last programs that the
    multiprocessors take on have not much less to do than the first.
    """
    wanted = 1 if pairs >= 2 * processors else max(2, 2 * processors // pairs)
    useful = max(1, length // KEY_BLOCK)
    few = min(16, 1 << (wanted.bit_length() - 1), 1 << (useful.bit_length() - 1))
    if length < MANY_KEYS:
        return few

    def blocks(portions: int) -> int:
        """That a multiprocessor attends to, one after another."""
        rounds = math.ceil(pairs * portions / (RESIDENT_PORTIONS * processors))
        return rounds * math.ceil(length / KEY_BLOCK / portions)

    return min((few << more for more in range(5 - few.bit_length())), key=lambda one: (blocks(one), one), default=few)


def key_stages(blocks: int, width: int, *, is_paged: bool) -> int:
    """How many blocks of keys a loop over so many is at work on. Where there is one at most, it need not read ahead.

    width: of a head; of wide ones only two blocks fit. With pages, finding a block's page is a stage too.
    """
    if blocks <= 1:
        return 1
    if width > 128:
        return 2
    return min(5, blocks + 2) if is_paged else 3


def can_read_together(group: int, width: int) -> bool:
    """Whether the queries of a team of rows for a head of keys are one tile that fits into registers. group: heads of
    queries for a head of keys; width: of a head."""
    return 2 <= group <= 8 and width <= 128


def is_one_attention_launch(*, has_lanes: bool, repeated: int) -> bool:
    """Whether the kernel that attends to the keys also makes the queries and the new keys and values.

    Each portion of a row's keys then makes the same queries, which is little for few ranks of adapters. has_lanes: rows
    read the keys that others write in the same step, so all must be written before; repeated: portions times ranks.
    """
    return not has_lanes and repeated <= MOST_REPEATED
