"""Matrix products of a decode step: the engine's NF4 kernels compared with bitsandbytes and with cuBLAS in bfloat16.

Every layer has its own weights, so that none is cached, and all run in one CUDA graph. The engine and bfloat16 fuse
query, key and value into one product and gate and up into another; bitsandbytes cannot. "fused" is gate and up with the
gate applied, as in a step without adapters on them. Without a GPU the engine's plain operations are timed, which says
nothing about a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from profiles.shapes import ARCHITECTURES, shape_of

REPEATS, ROUNDS = 20, 5
AWAKE_S = 2.0
ALL = ("all", "all, fused", "bf16", "4 bits *")
"""Milliseconds of all layers."""
Work = Callable[[], Any]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks products", description=__doc__)
    parser.add_argument("--shape", choices=sorted(ARCHITECTURES), default="r1-qwen-1.5b")
    parser.add_argument("--layers", type=int, help="(all of the shape)")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 32, 64])
    args = parser.parse_args(arguments)
    import torch

    print(f"reproduce: python -m benchmarks products {' '.join(arguments)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(
        f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}, torch {torch.__version__}, {args.shape}\n"
    )
    with torch.inference_mode():
        table(Products(args.shape, args.layers, device), args.rows)
    return 0


class Products:
    """Random weights of a shape, in 4 bits."""

    def __init__(self, shape: str, layers: int | None, device: Any) -> None:
        import torch

        from workers.rollout.graph.engine import operations_for

        self.device, self.ops = device, operations_for(device)
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        sizes = shape_of(ARCHITECTURES[shape])
        self.layers = layers or sizes.num_hidden_layers
        hidden, mlp = sizes.hidden_size, sizes.intermediate_size
        heads = sizes.num_attention_heads * sizes.head_dim
        self.inputs = {"qkv": hidden, "out": heads, "gate, up": hidden, "down": mlp}
        outs = {
            "qkv": (heads, sizes.key_width, sizes.key_width),
            "out": (hidden,),
            "gate, up": (mlp, mlp),
            "down": (hidden,),
        }
        self.projections = {
            name: [self._projection(outs[name], inputs) for _ in range(self.layers)]
            for name, inputs in self.inputs.items()
        }
        self.dense = {
            name: [torch.cat([matrix.dense(self.dtype) for matrix in one.matrices]) for one in each]
            for name, each in self.projections.items()
        }

    def _projection(self, outs: tuple[int, ...], inputs: int) -> Any:
        import torch

        from workers.rollout.graph.step_weights import Matrix, Projection

        matrices = []
        for rows in outs:
            codes = torch.randint(0, 256, (rows * inputs // 2,), dtype=torch.uint8, device=self.device)
            scales = torch.rand(rows * inputs // 64, device=self.device) * 0.02 + 0.01
            matrices.append(Matrix(codes, scales, (rows, inputs)))
        return Projection([], matrices, None, None)

    def given(self, rows: int, name: str) -> tuple[Any, Any]:
        """x in the engine's layout, and as a plain [rows, inputs] tensor."""
        import torch

        from workers.rollout.graph.step_weights import Sum

        ones = torch.ones(self.inputs[name], device=self.device, dtype=self.dtype)
        drawn = torch.randn(rows, self.inputs[name], device=self.device, dtype=self.dtype)
        how = Sum(1e-6, torch.float32, self.dtype)
        x, plain = (self.ops.add_norm(drawn, None, None, ones, how, is_last=one)[1] for one in (False, True))
        return x, plain


def table(products: Products, rows: list[int]) -> None:
    names = list(products.inputs)
    wake(products, rows[0])
    print("microseconds of a layer; milliseconds of all layers; error: of the sums, relative to float32\n")
    print(
        f"{'rows':>4}  "
        + "".join(f"{name:>12}" for name in (*names, "fused", "all", "with fused", "bf16", "4 bits *", "error"))
    )
    for count in rows:
        calls, fused, dense, plain = calls_of(products, count)
        each = [microseconds(calls[name], products) for name in names]
        whole = microseconds([one for name in names for one in calls[name]], products)
        stepped = microseconds([*calls["qkv"], *calls["out"], *fused, *calls["down"]], products)
        others = [microseconds(dense, products), bitsandbytes(products, plain)]
        all_of_them = [value * products.layers / 1e3 if value else None for value in (whole, stepped, *others)]
        error = max(off(products, name, count) for name in names)
        cells = [f"{value:.1f}" for value in (*each, microseconds(fused, products))]
        cells += ["-" if value is None else f"{value:.3f}" for value in all_of_them]
        print(f"{count:>4}  " + "".join(f"{cell:>12}" for cell in (*cells, f"{error:.0e}")), flush=True)
    print("\n* bitsandbytes' own product for each matrix; -: it is not installed, or there is no GPU")


def wake(products: Products, rows: int) -> None:
    """Let an idle GPU raise its clocks; otherwise the first row would take twice as long."""
    _, _, dense, _ = calls_of(products, rows)
    until = time.monotonic() + (AWAKE_S if products.device.type == "cuda" else 0)
    while time.monotonic() < until:
        microseconds(dense, products)


def calls_of(products: Products, rows: int) -> tuple[dict[str, list[Work]], list[Work], list[Work], dict[str, Any]]:
    """Calls for all layers: each product, gate and up fused, the full-precision ones, and the latter's weights."""
    from torch.nn.functional import linear

    from workers.rollout.graph.step_weights import Gate

    ops, names = products.ops, list(products.inputs)
    x, plain = ({name: products.given(rows, name)[i] for name in names} for i in (0, 1))
    calls = {name: [partial(ops.project, x[name], one) for one in products.projections[name]] for name in names}
    fused = [partial(ops.gate_up, x["gate, up"], one, Gate("silu", True)) for one in products.projections["gate, up"]]
    dense = [partial(linear, plain[name], weight) for name in names for weight in products.dense[name]]
    return calls, fused, dense, plain  # type: ignore[return-value]


def microseconds(work: list[Work], products: Products) -> float:
    """Time per layer: median of several rounds of `work`."""
    import torch

    def run() -> None:
        for one in work:
            one()

    run()
    if products.device.type == "cpu":
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1e6 / products.layers
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    event: Any = torch.cuda.Event
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    times = []
    for _ in range(ROUNDS):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(REPEATS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / REPEATS)
    return statistics.median(times) * 1e3 / products.layers


def bitsandbytes(products: Products, plain: dict[str, Any]) -> float | None:
    """Time of bitsandbytes' `matmul_4bit`, with 8-bit scales as in a loaded model."""
    if products.device.type == "cpu":
        return None
    try:
        library: Any = importlib.import_module("bitsandbytes")
    except ImportError:
        return None
    work: list[Work] = []
    for name, each in products.projections.items():
        for one in each:
            for matrix in one.matrices:
                made = library.functional.quantize_4bit(
                    matrix.dense(products.dtype), quant_type="nf4", compress_statistics=True
                )
                work.append(partial(library.matmul_4bit, plain[name], made[0], quant_state=made[1]))
    return microseconds(work, products)


def off(products: Products, name: str, rows: int) -> float:
    """Relative error (norm) of the first layer's product."""
    x, plain = products.given(rows, name)
    found = products.ops.project(x, products.projections[name][0])
    found = found if hasattr(found, "norm") else found.data.sum(0)
    expected = plain.float() @ products.dense[name][0].float().T
    return float((found.float() - expected).norm() / expected.norm())
