"""The CUDA C++ kernels of a decode step compute on a CPU what the trainer's weights say, as `CudaOperations` launches
them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.workers.rollout import emulation
from tests.workers.rollout.emulated_cases import (
    OF_SOME,
    Operations,
    check_gate_up,
    check_products,
    normal,
    operations,
    project,
    projection,
    weights_of,
)
from tests.workers.rollout.emulation import Device, compiled, translated
from workers.rollout.graph.cuts import RANKED, SEVERAL, Cut
from workers.rollout.graph.step_weights import Adapters, Gate, Matrix, Projection

pytestmark = [
    pytest.mark.skipif(bool(emulation.reason_against()), reason=emulation.reason_against()),
    pytest.mark.usefixtures("one_thread"),
]
KINDS = ["nf4", "bfloat16"]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return Device(compiled(tmp_path_factory.mktemp("emulated")))


@pytest.fixture
def made(device: Device, monkeypatch: pytest.MonkeyPatch) -> Operations:
    return operations(device, monkeypatch)


@pytest.mark.parametrize(("rows", "together"), [
    (8, False), (16, False), (32, False), (64, False), (32, True), (64, True),
])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_the_trainers_to_the_bit(
    kind: str, rows: int, together: bool, device: Device, made: Operations
) -> None:
    """A row of x with a single one in it picks a column."""
    one, x = projection(kind, (48,), 320), torch.zeros(rows, 320, dtype=torch.bfloat16)
    places = torch.randperm(320, generator=torch.Generator().manual_seed(0))[:rows]
    x[torch.arange(rows), places] = 1.0
    assert torch.equal(project(device, made(4, together=together), one, x), weights_of(one).float()[:, places].T)


SHAPES = pytest.mark.parametrize(("sizes", "inputs", "rank"), [
    ((64,), 256, 0), ((40, 24, 24), 320, 16), ((24, 8), 576, 4), ((16, 16, 16), 1088, 8),
])  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 16, 17, 32, 40, 64, 100])
@pytest.mark.parametrize("kind", KINDS)
@SHAPES
def test_products_are_those_of_the_weights(
    sizes: tuple[int, ...], inputs: int, rank: int, kind: str, rows: int, device: Device, made: Operations
) -> None:
    check_products(device, made(6), projection(kind, sizes, inputs, rank), normal(rows, inputs))


@pytest.mark.parametrize("rows", [17, 32, 40, 64, 100])
@pytest.mark.parametrize("kind", KINDS)
@SHAPES
def test_four_warps_together_compute_the_products_of_the_weights(
    sizes: tuple[int, ...], inputs: int, rank: int, kind: str, rows: int, device: Device, made: Operations
) -> None:
    check_products(device, made(6, together=True), projection(kind, sizes, inputs, rank), normal(rows, inputs))


FEW, MANY, TOGETHER = (5, 13), (20, 40), (24, 48)
"""Rows, the last of which four warps multiply together."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cut", "counts"), [
    *((cut, FEW) for cut in (Cut(2, 3, 4), Cut(5, 1, 3, 2, 2), Cut(3, 2, 2, 2, 4), Cut(1, 5, 5, 2, 3),
                             Cut(1, 5, 1, 4, 12), Cut(1, 5, 1, 12, 12))),
    *((cut, MANY) for cut in (Cut(1, 5, 1), Cut(2, 3, 8), Cut(5, 1, 3))),
    *((cut, TOGETHER) for cut in (Cut(1, 5, 4), Cut(2, 3, 8), Cut(5, 1, 4))),
], ids=str)  # fmt: skip
def test_products_are_the_same_however_they_are_cut(
    cut: Cut, counts: tuple[int, int], kind: str, device: Device, made: Operations
) -> None:
    """K of 1088 is four whole chunks and a quarter, so the last split has the fewest, and may have fewer than warps."""
    one = projection(kind, (40, 24, 24), 1088, 16)
    for rows in counts:
        check_products(device, made(6, cut, together=counts == TOGETHER), one, normal(rows, 1088))


@pytest.mark.parametrize("cut", [Cut(1, 5, 2, 3, 7), Cut(1, 5, 5, 2, 4), Cut(1, 5, 1, 9, 9), None], ids=str)
@pytest.mark.parametrize(("sizes", "rank"), [
    ((192, 192), 0), ((192, 192), 16), ((384,), 0), ((384,), 8),
])  # fmt: skip
@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("kind", KINDS)
def test_gate_and_up_are_those_of_the_weights(
    kind: str, name: str, sizes: tuple[int, ...], rank: int, cut: Cut | None, device: Device, made: Operations
) -> None:
    one, gate = projection(kind, sizes, 1088, rank), Gate(name, True)
    for rows in (1, 8, 13):
        check_gate_up(device, made(6, cut), one, gate, normal(rows, 1088) / 32)


@pytest.mark.slow
def test_sanitizers_find_nothing() -> None:
    """No kernel reads or writes outside its arguments and its shared memory, or does what C++ leaves undefined."""
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    if not Path(runtime.strip()).is_absolute():
        pytest.skip("g++ is installed without its sanitizers")
    changes = {"LD_PRELOAD": runtime.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", "tests.workers.rollout.emulated_cases"]
    done = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


SIZES = [(896, 4864), (1536, 8960), (3584, 18_944), (5120, 27_648)]
"""Hidden and intermediate sizes of Qwen2.5 with .5B, 1.5B, 7B and 32B."""
PROCESSORS = (16, 20, 24, 28, 46, 68, 82, 128, 132, 170)


@pytest.mark.parametrize("rank", [0, 16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_no_launch_asks_for_more_than_a_gpu_has(
    kind: str, rank: int, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, nowhere = operations(Device(device.code, is_dry=True), monkeypatch), torch.device("meta")
    for processors, number in itertools.product(PROCESSORS, range(RANKED + SEVERAL)):
        ops = made(processors)
        monkeypatch.setattr(ops._tuned, "of", lambda key, cuts, number=number: cuts[min(number, len(cuts) - 1)])
        for (hidden, inner), rows in itertools.product(SIZES, (8, 16, 32, 64)):
            x = ops.inputs(rows, hidden, nowhere)
            ops.project(x, sizes_of(kind, (hidden, hidden // 4, hidden // 4), hidden, rank))
            ops.project(ops.inputs(rows, inner, nowhere), sizes_of(kind, (hidden,), inner, rank))
            if rows <= 16:
                x.inner = torch.empty(rows, 2 * rank, device=nowhere)
                ops.gate_up(x, sizes_of(kind, (inner, inner), hidden, rank), Gate("silu", True))


def sizes_of(kind: str, sizes: tuple[int, ...], inputs: int, rank: int) -> Projection:
    """A projection without numbers."""
    nothing = torch.empty(0)
    matrices = [Matrix(nothing, nothing if kind == "nf4" else None, (size, inputs)) for size in sizes]
    a, b = torch.empty(rank * len(sizes), inputs, device="meta"), torch.empty(rank, sum(sizes), device="meta")
    return Projection([], matrices, None, Adapters(a, b, rank, 2.0) if rank else None)


def test_an_instruction_that_is_not_known_is_not_skipped(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="prmt_b64"):
        compiled(tmp_path, OF_SOME[:1], change=('asm("prmt.b32', 'asm("prmt.b64'))


@pytest.mark.parametrize("statement", [
    'asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));',
    'asm("add.u32 %0, %1, 1; add.u32 %0, %0, 1;" : "=r"(a) : "r"(b));',
    'asm("@p bra there;");',
    'asm("add.u32 %0, %[named], 1;" : "=r"(a) : [named] "r"(b));',
])  # fmt: skip
def test_assembly_that_cannot_be_translated_is_refused(statement: str) -> None:
    with pytest.raises(ValueError, match="not one instruction"):
        translated(statement)


WAITS = "    wait_for_previous();\n    after();\n    uint4 rows[NT][8];"
EARLY = """    uint4 rows[NT][8];
    for (int at = 0; at < 8; at++) rows[0][at] = FromGlobal{x, 0, 1, block, blocks}.read(0, at);
    held = block;
    wait_for_previous();
    after();"""
BARRIER = "    __syncthreads();\n}"
WAITED = """a[1], x.half_of(eighth, 1));
        end_products();
    }
    wait_for_products();
"""
BEGIN = "        begin_products();\n        mma_together<NT>(acc, a[0]"
MUTANTS = {
    "codes of the other half": (0, "codes << 7) & 0x7f80", "codes << 3) & 0x7f80", ""),
    "sums are read early": (0, "    __syncthreads();\n}\n\n// Element", "}\n\n// Element", ""),
    "x is not waited for": (0, WAITS, WAITS.split("\n", 1)[1], "has not waited for the kernel before"),
    "x is read early": (0, WAITS, EARLY, ""),
    "a warp without work leaves no zeros": (0, "if (first - t >= end)", "if (false)", ""),
    "sums of another place": (0, "= sums + (long)(i * sharing + member)", "= sums + (long)sharing", "a write outside"),
    "a row too many": (0, "if (m < M && n < left)", "if (m <= M && n < left)", "a write outside"),
    "a copy is not waited for": (2, "        wait_for_copies();\n", "", "nobody has waited for"),
    "a copy is read early": (2, "        __syncthreads();  // this chunk", "  // this chunk", ""),
    "bytes of the other half": (2, "0x6273 : 0x4051", "0x4051 : 0x6273", ""),
    "a copy comes early": (2, "((chunk - begin + 1) & 1)", "((chunk - begin) & 1)", ""),
    "a barrier for some": (2, "if (begin < end) stage", "if (t & 1) __syncthreads(); stage", "no thread can go on"),
    "x is not told of": (6, "        X::publish();\n", "", "does not see yet"),
    "products are not waited for": (6, WAITED, WAITED.replace("    wait_for_products();\n", ""), "does not see yet"),
    "another matrix": (6, "(u64)(128 >> 4)", "(u64)(256 >> 4)", "does not see yet"),
    "another tile": (6, "(u64)(4096 >> 4)", "(u64)(512 >> 4)", ""),
    "a swizzled matrix": (6, "(u64)(4096 >> 4) << 32", "(u64)(4096 >> 4) << 32 | 1ull << 62", "swizzled"),
    "blocks that are not there": (6, "min(4 * left, 16)", "16", ""),
    "registers are not told of": (6, BEGIN, BEGIN.replace("begin_products();", ""), "without wgmma.fence"),
    "half a group": (6, "if (is_adapter) {", "if (threadIdx.x >= 64) return; if (is_adapter) {", "no thread can go on"),
    "another layout": (5, "(m & 7) * 4 + ((k & 255) >> 6)", "(m & 7) + ((k & 255) >> 6) * 8", ""),
    "adapters of the other": (5, "r < rank ? r : R", "r >= rank ? r - rank : R", ""),
    "adapters are not waited for": (5, "    wait_for_copies();\n" + BARRIER, BARRIER, "nobody has waited for"),
}  # fmt: skip
"""Number of a kernel in OF_SOME; text of its source, and what it becomes; what is said then, or nothing if a number
is wrong."""
ALIKE = {
    "another matrix", "a swizzled matrix", "products are not waited for", "registers are not told of",
    "sums of another place", "a row too many", "x is read early", "adapters are not waited for",
}  # fmt: skip
"""Mistakes of a kind that others stand for."""


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.exhaustive] if name in ALIKE else []) for name in MUTANTS
])  # fmt: skip
def test_a_mistake_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number, *change, said = MUTANTS[name]
    device = Device(compiled(tmp_path, (OF_SOME[number],), change=(change[0], change[1])))
    with pytest.raises(RuntimeError if said else AssertionError, match=said or None):
        check_mutant(device, operations(device, monkeypatch), number)


def check_mutant(device: Device, made: Operations, number: int) -> None:
    if number == 5:
        both = projection("nf4", (64, 64), 576, 16)
        check_gate_up(device, made(6), both, Gate("silu", True), normal(13, 576) / 32)
    else:
        cut, rows = {0: (Cut(1, 3, 4), 5), 2: (Cut(1, 3, 2), 20), 6: (Cut(1, 3, 4), 40)}[number]
        check_products(
            device, made(6, cut, together=number == 6), projection("nf4", (40, 24), 576, 16), normal(rows, 576)
        )
