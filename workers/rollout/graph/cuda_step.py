"""The operations of a decode step with large products in CUDA C++; Triton's tiles are too large for few rows."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import torch

from workers.rollout.graph.cuda import Kernels
from workers.rollout.graph.cuts import (
    CHUNK,
    GATE_RESIDENT,
    MANY_TILES,
    MAX_WARPS,
    RESIDENT,
    STAGED_BYTES,
    TILE,
    cut_of,
    many_cut_of,
    tiles_of,
)
from workers.rollout.graph.step_weights import Adapters, Gate, Layer, Projection
from workers.rollout.graph.triton_step import Inputs, Parts, TritonOperations, is_one_launch, pair, three

SOURCE = Path(__file__).with_name("matmul.cu")
MAX_SPLITS, MANY_SPLITS = 8, 12
"""Most splits of K that were measured. The kernels that add the parts accept any number."""
MOST_RANK = 64
"""Of adapters that `gate_up` adds: `MOST_RANK` in matmul.cu."""
MANY_WARPS = {True: 8, False: 12}
"""Most warps in a block of `project_many`, for bfloat16 and for NF4: `__launch_bounds__` in matmul.cu."""
KINDS = {"silu": 0, "gelu_pytorch_tanh": 1}
"""Activations of a gate by their number in matmul.cu."""


class CudaOperations(TritonOperations):
    """`Operations` on a CUDA device, in bfloat16. x has the layout of `place` in matmul.cu."""

    fragments = True

    def __init__(self, device: torch.device) -> None:
        """Raises RuntimeError if the source does not compile for this GPU."""
        super().__init__(device)
        self._device = device
        self._parts = self.processors, shared_bytes_of(device)
        self._kernels: dict[str, Kernels] = {}
        self._kernel("project<1, false>")

    def _kernel(self, name: str) -> Kernels:
        if name not in self._kernels:
            self._kernels[name] = Kernels(SOURCE, (name,), self._device)
        return self._kernels[name]

    def inputs(self, rows: int, columns: int, device: torch.device) -> Inputs:
        """Room for x, in whole tiles of 8 rows and chunks of 256 columns."""
        shape = -(-rows // 8), -(-columns // CHUNK), 8 * CHUNK
        return Inputs(torch.empty(shape, dtype=torch.bfloat16, device=device), rows)

    def project(self, x: Inputs, projection: Projection) -> Parts:
        rows, inputs = x.rows, projection.matrices[0].shape[1]
        columns, ends = projection.ends[-1], projection.ends
        a = None if projection.adapters is None else projection.adapters.a
        extra = 0 if a is None else a.shape[0]
        matrices = projection.matrices
        is_dense, tiles = matrices[0].absmax is None, tiles_of(rows)
        layers = math.ceil(rows / (8 * tiles))
        counts = sum(math.ceil(matrix.shape[0] / TILE) for matrix in matrices), math.ceil(extra / TILE)
        if tiles < MANY_TILES:
            kernel, floats = "project", TILE * 8 * tiles
            across = sum(counts)
            limits = MAX_WARPS[tiles], RESIDENT[tiles]
            cut = cut_of(across * layers, inputs, floats, self.processors, limits, MAX_SPLITS)
            shared = 4 * floats * cut.warps
        else:
            kernel, shared = "project_many", STAGED_BYTES * tiles
            cut = many_cut_of(counts, inputs, rows, MANY_WARPS[is_dense], self._parts, MANY_SPLITS)
            across = sum(math.ceil(count / cut.warps) for count in counts)
        out = torch.empty(cut.splits, rows, columns + extra, dtype=torch.float32, device=x.data.device)
        name = f"{kernel}<{tiles}, {flag(is_dense)}>"
        self._kernel(name).launch(
            name,
            (across, layers, cut.splits),
            32 * cut.warps,
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
            cut.chunks,
        )
        return Parts(out, cut.splits, columns)

    def added_by_gate_up(self, rows: int, layer: Layer) -> Adapters | None:
        adapters, gate = layer.gate_up.adapters, layer.gate
        is_fit = gate.has_gate and gate.name in KINDS and layer.gate_up.bias is None and tiles_of(rows) < MANY_TILES
        return adapters if is_fit and adapters is not None and adapters.rank <= MOST_RANK else None

    def gate_up(self, x: Inputs, projection: Projection, gate: Gate) -> Inputs:
        rows, tiles, adapters = x.rows, tiles_of(x.rows), projection.adapters
        is_one = is_one_launch(projection, gate) if adapters is None else x.inner is not None
        if not is_one or tiles >= MANY_TILES:
            return self.activated(x, projection, gate)
        first, up = pair(projection)
        columns, inputs = first.shape
        out = self.inputs(rows, columns, x.data.device)
        floats = 2 * TILE * 8 * tiles
        grid = columns // TILE, math.ceil(rows / (8 * tiles)), 1
        limits = MAX_WARPS[tiles], GATE_RESIDENT
        warps = cut_of(grid[0] * grid[1], inputs, floats, self.processors, limits, 1).warps
        name = f"gate_up<{tiles}, {flag(first.absmax is None)}, {KINDS[gate.name]}>"
        scales = [self.or_nothing(one.absmax) for one in (first, up)]
        self._kernel(name).launch(
            name,
            grid,
            32 * warps,
            4 * floats * warps,
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
            0 if adapters is None else adapters.rank,
        )
        return out


@cache
def shared_bytes_of(device: torch.device) -> int:
    """Shared memory of one multiprocessor."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor)


def flag(value: bool) -> str:
    """The value as a C++ literal."""
    return "true" if value else "false"
