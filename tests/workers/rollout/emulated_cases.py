"""Products of a decode step on the emulated device, beside those of the same weights in float64.

Whatever a kernel must not read is NaN: rows that are not there, places behind K, shared memory that nothing wrote, and
what the kernel before has not written yet.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.workers.rollout.emulation import SANITIZED, Device, compiled, modules
from tests.workers.rollout.test_graph_kernels import lay, plain
from workers.rollout.graph.cuts import MATRICES, Cut
from workers.rollout.graph.step import activated
from workers.rollout.graph.step_weights import Adapters, Gate, Matrix, Projection

SUM = 2.0**-20
"""Of the sum of a product's absolute terms: what float32 sums round, but less than the last bit of a weight in 300."""
TAIL = 2.0**-12
"""PyTorch computes GELU with 1 + tanh, which cancels where the kernel's quotient does not."""
Operations = Callable[..., Any]
"""Of (processors, cut, together): makes operations for a GPU of so many multiprocessors. cut: the only one, if given;
together: `TogetherOperations`, or else `CudaOperations`."""


def operations(device: Device, patch: pytest.MonkeyPatch) -> Operations:
    cuda_step, triton_step = modules()
    patch.setattr(cuda_step, "Kernels", device)
    patch.setattr(cuda_step, "shared_bytes_of", lambda _: 100 << 10)
    patch.setattr(cuda_step, "facts_of", lambda _: {})
    patch.setattr(cuda_step, "has_warpgroups", lambda _: False)
    patch.setattr(triton_step, "can_chain", lambda _: True)

    def made(processors: int, cut: Cut | None = None, *, together: bool = False) -> Any:
        patch.setattr(triton_step, "processors_of", lambda _: processors)
        if cut is not None:
            for name in ("few_cuts", "many_cuts"):
                patch.setattr(cuda_step, name, lambda *_: (cut,))
        kind = cuda_step.TogetherOperations if together else cuda_step.CudaOperations
        return kind(torch.device("cpu"))

    return made


def matrix(kind: str, rows: int, columns: int, draws: torch.Generator) -> Matrix:
    if kind == "bfloat16":
        return Matrix(torch.randn(rows, columns, generator=draws).bfloat16(), None, (rows, columns))
    count = rows * columns
    codes = torch.randint(0, 256, (count // 2,), generator=draws, dtype=torch.uint8)
    return Matrix(codes, 0.01 + torch.rand(count // 64, generator=draws), (rows, columns))


def projection(kind: str, sizes: Sequence[int], inputs: int, rank: int = 0) -> Projection:
    """Random weights side by side, with adapters unless rank is 0. kind: "nf4" or "bfloat16"; sizes: rows of each."""
    draws = torch.Generator().manual_seed(len(sizes) * inputs + rank)
    matrices = [matrix(kind, size, inputs, draws) for size in sizes]
    if not rank:
        return Projection([], matrices, None, None)
    a = torch.randn(rank * len(sizes), inputs, generator=draws).bfloat16()
    b = torch.randn(rank, sum(sizes), generator=draws).bfloat16()
    return Projection([], matrices, None, Adapters(a, b, rank, 2.0))


def normal(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).bfloat16()


def inputs_of(ops: Any, rows: Tensor) -> Any:
    """x with NaN where nothing is."""
    x = ops.inputs(len(rows), rows.shape[1], rows.device)
    whole = rows.new_full((x.data.shape[0] * 8, x.data.shape[1] * 256), math.nan)
    whole[: len(rows), : rows.shape[1]] = rows
    lay(x, whole, is_together=ops.layout == MATRICES)
    return x


def weights_of(projection: Projection) -> Tensor:
    """[N + R, K] in bfloat16: the weights that the trainer computes with, then A."""
    adapters = [] if projection.adapters is None else [projection.adapters.a]
    return torch.cat([one.dense(torch.bfloat16) for one in projection.matrices] + adapters)


def project(device: Device, ops: Any, projection: Projection, rows: Tensor) -> Tensor:
    """Float32, [M, N + R]. Both orders give the same bits, and write each element once."""
    found = []
    for device.is_backward in (False, True):
        found.append(ops.project(inputs_of(ops, rows), projection).data)
        assert bool((device.writes == 1).all())
    assert torch.equal(*found)
    return found[0].sum(0)


def check_products(device: Device, ops: Any, projection: Projection, rows: Tensor) -> None:
    found, weights, x = project(device, ops, projection, rows), weights_of(projection).double(), rows.double()
    assert bool(((found - x @ weights.T).abs() <= SUM * (x.abs() @ weights.abs().T)).all())


def check_gate_up(device: Device, ops: Any, projection: Projection, gate: Gate, rows: Tensor) -> None:
    x, adapters = inputs_of(ops, rows), projection.adapters
    weights = torch.cat([one.dense(torch.bfloat16) for one in projection.matrices]).double()
    products, terms = rows.double() @ weights.T, rows.double().abs() @ weights.abs().T
    if adapters is not None:
        x.inner = adapters.scale * rows.float() @ adapters.a.float().T
        inner = x.inner[:, : adapters.rank].double(), x.inner[:, -adapters.rank :].double()
        pairs = list(zip(inner, adapters.b.double().chunk(2, 1), strict=True))
        products += torch.cat([each @ b for each, b in pairs], 1)
        terms += torch.cat([each.abs() @ b.abs() for each, b in pairs], 1)
    results = []
    for device.is_backward in (False, True):
        out = ops.gate_up(x, projection, gate)
        results.append(plain(out, weights.shape[0] // 2))
        assert bool((plain(type(out)(device.writes, len(rows)), weights.shape[0] // 2) == 1).all())
        assert int(device.writes.sum()) == results[0].numel()
    assert torch.equal(*results)
    exact = gated(products, products, gate)
    assert float(((results[0] - exact).abs() <= TAIL).float().mean()) > 0.97
    # The sums may be off by so much, and one beside the middle of two numbers is then rounded to the other.
    ends = [products - SUM * terms, products + SUM * terms]
    found = torch.stack([exact, *(gated(first, up, gate) for first, up in itertools.product(ends, ends))]).float()
    slack = 2.0**-6 * exact.float().abs() + TAIL
    assert bool((results[0].float() >= found.amin(0) - slack).all())
    assert bool((results[0].float() <= found.amax(0) + slack).all())


def gated(first: Tensor, up: Tensor, gate: Gate) -> Tensor:
    """In bfloat16 from sums of gate and up, of which each is half of a tensor's columns."""
    rounded = first.bfloat16().chunk(2, 1)[0], up.bfloat16().chunk(2, 1)[1]
    return activated(rounded[0].double(), gate).bfloat16() * rounded[1]


def check_some(device: Device) -> None:
    """Of each kind of kernel one, with ragged weights, an incomplete chunk and adapters."""
    with pytest.MonkeyPatch.context() as patch:
        made = operations(device, patch)
        for kind, rows, together in (
            ("nf4", 5, False), ("bfloat16", 13, False), ("nf4", 20, False), ("bfloat16", 40, False), ("nf4", 40, True),
        ):  # fmt: skip
            one = projection(kind, (40, 24, 24), 576, 16)
            check_products(device, made(6, together=together), one, normal(rows, 576))
        for kind, rows in (("bfloat16", 5), ("nf4", 13)):
            both = projection(kind, (64, 64), 576, 16)
            check_gate_up(device, made(6), both, Gate("silu", True), normal(rows, 576) / 32)


OF_SOME = (
    "project<1, false>",
    "project<2, true>",
    "project_many<4, false, FromShared>",
    "project_many<8, true, FromShared>",
    "gate_up<1, true, 0>",
    "gate_up<2, false, 0>",
    "project_many<8, false, Together>",
)
"""The kernels of `check_some`."""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check_some(Device(compiled(Path(folder), OF_SOME, SANITIZED)))
