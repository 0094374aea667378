"""The operations of a decode step with large products in CUDA C++; Triton's tiles are too large for few rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from pathlib import Path

import torch

from workers.rollout.graph.cuda import Kernels, has_warpgroups
from workers.rollout.graph.cuts import (
    CHUNK,
    FRAGMENTS,
    GATE_RESIDENT,
    GATE_WARPS,
    MANY_TILES,
    MATRICES,
    MAX_ROWS_A_BLOCK,
    MAX_WARPS,
    RESIDENT,
    STAGED_BYTES,
    TILE,
    Cut,
    few_cuts,
    many_cuts,
    tiles_of,
)
from workers.rollout.graph.step_weights import Adapters, Gate, Layer, Projection, Weights
from workers.rollout.graph.triton_step import Inputs, Parts, TritonOperations, is_one_launch, pair, three
from workers.rollout.graph.tuned import Key, Tuned, facts_of, microseconds

SOURCE = Path(__file__).with_name("matmul.cu")
MAX_SPLITS, MANY_SPLITS = 8, 12
"""Most splits of K that were measured. The kernels that add the parts accept any number."""
MOST_RANK = 64
"""Of adapters that `gate_up` adds, whose B and x A^T must fit into its shared memory."""
RANK_TILE = 4
"""Of x A^T, `gate_up` copies as many float32 at a time."""
MANY_WARPS = {True: 8, False: 12}
"""Most warps in a block of `project_many`, for bfloat16 and for NF4: `__launch_bounds__` in matmul.cu."""
GROUP = 4
"""Warps whose tensor cores work together."""
GATE_TILE = 8
"""Columns of gate, and of up, in a tile of `gate_up`."""
USES_WARPGROUPS = False
"""Until they have been measured on a GPU."""
KINDS = {"silu": 0, "gelu_pytorch_tanh": 1}
"""Activations of a gate by their number in matmul.cu."""


class LibraryOperations(TritonOperations):
    """Those whose products are PyTorch's, of weights in bfloat16. For many rows a library's are the fastest: each block
    of ours reads the weights again for its rows."""

    def project(self, x: Inputs, projection: Projection) -> Parts:
        adapters, columns = projection.adapters, projection.ends[-1]
        weights = [matrix.data.view(matrix.shape) for matrix in projection.matrices]
        weights += [] if adapters is None else [adapters.a]
        out = torch.empty(1, x.rows, sum(map(len, weights)), dtype=torch.float32, device=x.data.device)
        begin = 0
        for weight in weights:
            end = begin + len(weight)
            torch.mm(x.data, weight.t(), out_dtype=torch.float32, out=out[0, :, begin:end])
            begin = end
        return Parts(out, 1, columns)

    def gate_up(self, x: Inputs, projection: Projection, gate: Gate) -> Inputs:
        return self.activated(x, projection, gate)


class CudaOperations(TritonOperations):
    """`Operations` on a CUDA device, in bfloat16."""

    layout = FRAGMENTS
    reader, step = "FromShared", 1
    """How `project_many` reads x, and the step of its number of warps."""

    def __init__(self, device: torch.device) -> None:
        """Raises RuntimeError if the source does not compile for this GPU."""
        super().__init__(device)
        self._device = device
        self._parts = self.processors, shared_bytes_of(device)
        self._kernels: dict[str, Kernels] = {}
        sources = [SOURCE, *sorted(SOURCE.parent.glob("*.cuh"))]
        self._tuned = Tuned(facts_of(device) | {"sources": [sha256_of(path) for path in sources]})
        self._library = LibraryOperations(device)
        self._kernel("project<1, false>")

    @cached_property
    def _for_many(self) -> CudaOperations:
        return TogetherOperations(self._device) if USES_WARPGROUPS and has_warpgroups(self._device) else self

    def of(self, weights: Weights, rows: int) -> TritonOperations:
        projections = [one for layer in weights.layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        is_dense = all(matrix.absmax is None for one in projections for matrix in one.matrices)
        if is_dense and rows > MAX_ROWS_A_BLOCK:
            return self._library
        return self._for_many if tiles_of(rows) >= MANY_TILES else self

    def _kernel(self, name: str) -> Kernels:
        if name not in self._kernels:
            self._kernels[name] = Kernels(SOURCE, (name,), self._device)
        return self._kernels[name]

    def inputs(self, rows: int, columns: int, device: torch.device) -> Inputs:
        """Room for x, in whole tiles of 8 rows and chunks of 256 columns."""
        shape = -(-rows // 8), -(-columns // CHUNK), 8 * CHUNK
        return Inputs(torch.empty(shape, dtype=torch.bfloat16, device=device), rows)

    def tune(self, weights: Weights, rows: int, step: Callable[[], None]) -> None:
        """Measure how the products are divided best, unless that is known. The whole step is timed: the kernel that
        follows a product waits for it, and adds its parts up."""
        for layer in weights.layers:
            for key, cuts in self._products(layer, rows):
                if not self._tuned.knows(key):
                    self._tuned.choose(key, cuts, partial(microseconds, step, self._device))

    def _products(self, layer: Layer, rows: int) -> Iterator[tuple[Key, Sequence[Cut]]]:
        """For each product of a layer its key, and how it may be divided."""
        for one in (layer.qkv, layer.out, layer.down):
            yield self._project_cuts(rows, one)
        has_added = self.added_by_gate_up(rows, layer) is not None
        is_one = tiles_of(rows) < MANY_TILES and (has_added or is_one_launch(layer.gate_up, layer.gate))
        yield (self._gate_cuts if is_one else self._project_cuts)(rows, layer.gate_up)

    def _project_cuts(self, rows: int, projection: Projection) -> tuple[Key, Sequence[Cut]]:
        first, tiles, counts = projection.matrices[0], tiles_of(rows), tile_counts(projection)
        inputs, is_dense = first.shape[1], first.absmax is None
        if tiles < MANY_TILES:
            limits = MAX_WARPS, RESIDENT[tiles]
            cuts = few_cuts(counts, inputs, (TILE * 8 * tiles, 0), self.processors, limits, MAX_SPLITS)
        else:
            cuts = many_cuts(counts, inputs, rows, MANY_WARPS[is_dense], self._parts, MANY_SPLITS, self.step)
        return ("project", self.step, tiles, math.ceil(rows / (8 * tiles)), *counts, inputs, int(is_dense)), cuts

    def _gate_cuts(self, rows: int, projection: Projection) -> tuple[Key, Sequence[Cut]]:
        (first, _), adapters, tiles = pair(projection), projection.adapters, tiles_of(rows)
        (columns, inputs), is_dense = first.shape, first.absmax is None
        rank = 0 if adapters is None else adapters.rank
        limits = MAX_WARPS if is_dense or tiles > 1 else GATE_WARPS, GATE_RESIDENT
        floats = TILE * 8 * tiles, GATE_TILE * rank
        cuts = few_cuts((columns // GATE_TILE, 0), inputs, floats, self.processors, limits, 1)
        return ("gate_up", tiles, columns, inputs, rank, int(is_dense)), cuts

    def project(self, x: Inputs, projection: Projection) -> Parts:
        rows, inputs = x.rows, projection.matrices[0].shape[1]
        columns, ends = projection.ends[-1], projection.ends
        a = None if projection.adapters is None else projection.adapters.a
        extra = 0 if a is None else a.shape[0]
        matrices = projection.matrices
        is_dense, tiles = matrices[0].absmax is None, tiles_of(rows)
        counts = tile_counts(projection)
        key, cuts = self._project_cuts(rows, projection)
        cut = self._tuned.of(key, cuts)
        how: tuple[int, ...]
        if tiles < MANY_TILES:
            kernel, layers = "project", 1
            across, threads = sum(math.ceil(count / cut.tiles) for count in counts), 32 * cut.warps * cut.groups
            shared, how = 4 * TILE * 8 * tiles * cut.tiles * cut.warps, (cut.chunks, cut.tiles, cut.warps)
        else:
            kernel, shared, layers = "project_many", STAGED_BYTES * tiles, math.ceil(rows / (8 * tiles))
            across, threads, how = sum(math.ceil(count / cut.warps) for count in counts), 32 * cut.warps, (cut.chunks,)
        out = torch.empty(cut.splits, rows, columns + extra, dtype=torch.float32, device=x.data.device)
        name = f"{kernel}<{tiles}, {flag(is_dense)}{'' if tiles < MANY_TILES else f', {self.reader}'}>"
        self._kernel(name).launch(
            name,
            (across, layers, cut.splits),
            threads,
            shared,
            x.data,
            *three([matrix.data for matrix in matrices]),
            *three([self.nothing if matrix.absmax is None else matrix.absmax for matrix in matrices]),
            self.nothing if a is None else a,
            out,
            rows,
            inputs,
            columns,
            extra,
            ends[0],
            ends[min(1, len(ends) - 1)],
            *how,
        )
        return Parts(out, cut.splits, columns)

    def added_by_gate_up(self, rows: int, layer: Layer) -> Adapters | None:
        adapters, gate = layer.gate_up.adapters, layer.gate
        is_fit = gate.has_gate and gate.name in KINDS and layer.gate_up.bias is None and tiles_of(rows) < MANY_TILES
        is_rank = adapters is not None and adapters.rank <= MOST_RANK and adapters.rank % RANK_TILE == 0
        return adapters if is_fit and is_rank else None

    def gate_up(self, x: Inputs, projection: Projection, gate: Gate) -> Inputs:
        rows, tiles, adapters = x.rows, tiles_of(x.rows), projection.adapters
        is_one = is_one_launch(projection, gate) if adapters is None else x.inner is not None
        if not is_one or tiles >= MANY_TILES:
            return self.activated(x, projection, gate)
        first, up = pair(projection)
        columns, inputs = first.shape
        out = self.inputs(rows, columns, x.data.device)
        rank = 0 if adapters is None else adapters.rank
        key, cuts = self._gate_cuts(rows, projection)
        cut = self._tuned.of(key, cuts)
        shared = TILE * 8 * tiles * cut.tiles * cut.warps + GATE_TILE * rank * (cut.tiles + 2 * tiles)
        name = f"gate_up<{tiles}, {flag(first.absmax is None)}, {KINDS[gate.name]}>"
        scales = [self.or_nothing(one.absmax) for one in (first, up)]
        self._kernel(name).launch(
            name,
            (math.ceil(columns / (GATE_TILE * cut.tiles)), 1, 1),
            32 * cut.warps * cut.groups,
            4 * shared,
            x.data,
            first.data,
            up.data,
            *scales,
            self.or_nothing(x.inner),
            self.nothing if adapters is None else adapters.b,
            out.data,
            rows,
            inputs,
            columns,
            0 if adapters is None else adapters.a.shape[0],
            rank,
            cut.tiles,
            cut.warps,
        )
        return out


class TogetherOperations(CudaOperations):
    """Those for more than 16 rows on Hopper, whose products the tensor cores of four warps compute together: a block
    reads x from shared memory a quarter as often."""

    layout = MATRICES
    reader, step = "Together", GROUP


@cache
def shared_bytes_of(device: torch.device) -> int:
    """Shared memory of one multiprocessor."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor)


def tile_counts(projection: Projection) -> tuple[int, int]:
    """How many tiles of columns its weights have, and its adapters' A."""
    extra = 0 if projection.adapters is None else projection.adapters.a.shape[0]
    return sum(math.ceil(matrix.shape[0] / TILE) for matrix in projection.matrices), math.ceil(extra / TILE)


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flag(value: bool) -> str:
    """The value as a C++ literal."""
    return "true" if value else "false"
