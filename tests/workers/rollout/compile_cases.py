"""Compiles the Triton kernels of decode steps for GPUs that need not be there, with the arguments of a real step.

Only for processes in which TRITON_INTERPRET is not set. The products, which CUDA C++ computes, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from profiles.description import Rope
from workers.rollout.graph import attention_kernels, draw_kernels, norm_kernels, triton_step
from workers.rollout.graph.cuts import FRAGMENTS, MATRICES
from workers.rollout.graph.lookup import Lanes
from workers.rollout.graph.state import Shape, State
from workers.rollout.graph.step_weights import Adapters, Gate, Heads, Layer, Matrix, Projection, Sum

STEP_KERNELS: dict[Any, tuple[str, ...]] = {
    norm_kernels: ("add_norm", "activate", "whole_norms"),
    attention_kernels: ("rope_write", "attend", "attend_together"),
    draw_kernels: ("draw",),
}
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32"}
VOCABULARY, SPLITS = 151_936, 4

OnCompiled = Callable[[str, Any], None]


class Compiling:
    """Stands for a kernel: a launch compiles it. As Triton does: ones are constants, multiples of 16 are known."""

    def __init__(self, kernel: Any, capability: int, on_compiled: OnCompiled) -> None:
        self.kernel, self.capability, self.on_compiled = kernel, capability, on_compiled

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.compile

    def compile(self, *values: Any, **named: Any) -> None:
        names = self.kernel.arg_names
        options = {name: value for name, value in named.items() if name not in names}
        given = dict(zip(names, values, strict=False)) | {name: named[name] for name in names if name in named}
        is_constant = {one.name: one.is_constexpr for one in self.kernel.params}
        constants = {name: one for name, one in given.items() if is_constant[name] or (type(one) is int and one == 1)}
        signature = {name: "constexpr" if name in constants else kind_of(given[name]) for name in names}
        whole = [["tt.divisibility", 16]]
        known = {
            (place,): whole
            for place, name in enumerate(names)
            if name not in constants and (isinstance(given[name], Tensor) or is_multiple(given[name]))
        }
        source = ASTSource(
            self.kernel, signature, {(names.index(name),): one for name, one in constants.items()}, known
        )
        target = GPUTarget("cuda", self.capability, 32)
        self.on_compiled(self.kernel.__name__, triton.compile(source, target=target, options=options))


def kind_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def is_multiple(value: Any) -> bool:
    return isinstance(value, int) and value % 16 == 0


@contextmanager
def compiling(capability: int, on_compiled: OnCompiled) -> Iterator[None]:
    """Within it, launches compile."""
    real = {(module, name): getattr(module, name) for module, names in STEP_KERNELS.items() for name in names}
    of_gpu = triton_step.processors_of, triton_step.can_chain
    try:
        for (module, name), kernel in real.items():
            setattr(module, name, Compiling(kernel, capability, on_compiled))
        triton_step.processors_of = lambda _: 132  # type: ignore[assignment]
        triton_step.can_chain = lambda _: capability >= 90
        yield
    finally:
        for (module, name), kernel in real.items():
            setattr(module, name, kernel)
        triton_step.processors_of, triton_step.can_chain = of_gpu


class Operations(triton_step.TritonOperations):
    """Those beside the CUDA products."""

    def added_by_gate_up(self, rows: int, layer: Layer) -> Adapters | None:
        return layer.gate_up.adapters if rows <= 16 else None

    def project(self, x: triton_step.Inputs, projection: Projection) -> triton_step.Parts:
        extra = 0 if projection.adapters is None else len(projection.adapters.a)
        columns = projection.ends[-1]
        return triton_step.Parts(torch.empty(SPLITS, x.rows, columns + extra), SPLITS, columns)


@dataclass(frozen=True)
class Case:
    """A layer's attention. rotated: lanes of a head; 0: it has no rope. rank: of adapters; 0: it has none."""

    heads: Heads
    rotated: int
    rank: int = 4
    has_bias: bool = False
    is_paged: bool = False
    has_lanes: bool = False
    reads_together: bool = False
    rows: int = 8
    hidden: int = 1024


def _norm(width: int) -> Tensor:
    return torch.empty(width, dtype=torch.bfloat16)


CASES = {
    "qwen2.5-1.5b": Case(Heads(12, 2, 128, Rope(), "", 0, 0.1, 0.0), 128, has_bias=True),
    "qwen3-1.7b, 64 rows": Case(
        Heads(16, 8, 128, Rope(), "", 0, 0.1, 0.0, _norm(128), _norm(128), "head"), 128, is_paged=True, rows=64
    ),
    "lanes": Case(
        Heads(16, 8, 128, Rope(), "", 0, 0.1, 0.0, _norm(128), _norm(128), "head"), 128, is_paged=True, has_lanes=True
    ),
    "qwen2.5-3b, teams": Case(
        Heads(16, 2, 128, Rope(), "", 0, 0.1, 0.0), 128, has_bias=True, is_paged=True, reads_together=True, rows=64
    ),
    "gemma4, window": Case(
        Heads(8, 1, 256, Rope(), "", 512, 1.0, 30.0, _norm(256), _norm(256), "head", True, True), 256, is_paged=True
    ),
    "olmo2": Case(Heads(16, 16, 128, Rope(), "", 0, 0.1, 0.0, _norm(2048), _norm(2048), "whole"), 128),
    "glm4": Case(Heads(16, 2, 64, Rope(is_interleaved=True), "", 0, 0.1, 0.0), 32, has_bias=True, is_paged=True),
    "heads of 72, normed": Case(Heads(8, 1, 72, Rope(), "", 0, 0.1, 0.0, _norm(72), _norm(72), "head"), 72, rows=1),
    "heads of 72, no rope": Case(Heads(8, 1, 72, None, "", 0, 0.1, 0.0), 0, rank=0),
}


def compile_layer(case: Case) -> None:
    """Everything of a layer and the draw, but the products."""
    heads, rows = case.heads, case.rows
    ops = Operations(torch.device("cpu"))
    ops.layout = MATRICES if rows > 16 else FRAGMENTS
    state = State(
        Shape(rows, 1024, 64, rows * 16 if case.is_paged else 0), [(heads.keys, heads.width)], torch.bfloat16, "cpu"
    )
    state.reads_together = case.reads_together
    if case.has_lanes:
        state = Lanes(state, 4)
        rows *= 4
    queries, keys = heads.queries * heads.width, heads.keys * heads.width
    how = Sum(1e-6, torch.float32, torch.bfloat16)

    def projection(inputs: int, *outputs: int) -> Projection:
        matrices = [Matrix(torch.empty(0), None, (one, inputs)) for one in outputs]
        shapes = (case.rank * len(outputs), inputs), (case.rank, sum(outputs))
        a, b = (torch.empty(shape, dtype=torch.bfloat16) for shape in shapes)
        bias = _norm(sum(outputs)) if case.has_bias else None
        return Projection([], matrices, bias, Adapters(a, b, case.rank, 2.0) if case.rank else None)

    qkv = projection(case.hidden, queries, keys, *([] if heads.values_are_keys else [keys]))
    norm, out = _norm(case.hidden), projection(queries, case.hidden)
    layer = Layer(norm, qkv, heads, out, how, norm, qkv, Gate("silu", True), out, how)
    residual = torch.empty(rows, case.hidden)
    _, x = ops.add_norm(residual, None, None, norm, how)
    rope = torch.empty(2, 1024, case.rotated, dtype=torch.bfloat16) if case.rotated else None
    mixed = ops.attention(ops.project(x, qkv), qkv, state, 0, rope, layer, how)
    _, x = ops.add_norm(residual, ops.project(mixed, out), out, norm, how, mlp=layer)
    ops.activated(x, projection(case.hidden, 2048, 2048), layer.gate)
    ops.draw(torch.empty(rows, VOCABULARY, dtype=torch.bfloat16), state)
