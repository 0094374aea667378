"""The CUDA C++ kernels of a decode step on a CPU: the same source, compiled by g++ over `emulated/device.h`.

The source is changed in three places. An asm statement becomes the call of a function with the instruction's name,
whose operands stand in the order of the instruction's text; an instruction that device.h does not know does not
compile. Shared memory whose size the launch says becomes a pointer to it, and the bounds of launches become constants.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

from workers.rollout.graph import cuda

SHIM = Path(__file__).with_name("emulated")
SOURCES = Path(cuda.__file__).parent
BOOLS = "false", "true"
OF_HOPPER = tuple(f"project_many<{tiles}, {is_dense}, Together>" for tiles in (4, 8) for is_dense in BOOLS)
NAMES = (
    *(f"project<{tiles}, {is_dense}>" for tiles in (1, 2) for is_dense in BOOLS),
    *(f"project_many<{tiles}, {is_dense}, FromShared>" for tiles in (4, 8) for is_dense in BOOLS),
    *(f"gate_up<{tiles}, {is_dense}, {kind}>" for tiles in (1, 2) for is_dense in BOOLS for kind in (0, 1)),
    *OF_HOPPER,
)
"""All kernels that `CudaOperations` and `TogetherOperations` can launch: the emulation refuses others."""
PREVIOUS = {"project": (0,), "project_many": (0,), "gate_up": (0, 5)}
"""Which arguments the kernel before computes: x, and what adapters make of it."""
COMPILER = ("g++", "-std=c++17", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-Wno-attributes", "-U_FORTIFY_SOURCE")
FAST = ("-O1",)
SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
NUMBER, WEIGHT, WRITTEN_BEFORE, RESULT = range(4)
"""Roles of arguments in device.h."""


def reason_against() -> str:
    """Why nothing can be emulated here; empty if it can."""
    if sys.platform != "linux":
        return "the emulation of CUDA kernels needs Linux"
    return "" if shutil.which("g++") else "g++ is not installed (scripts/system-packages.sh)"


def translated(source: str) -> str:
    """CUDA C++ with inline assembly as C++. Raises ValueError at an asm statement that is not one instruction."""
    parts, rest = [], source
    while found := re.search(r"\basm\b\s*(?:volatile)?\s*\(", rest):
        end = closing(rest, found.end())
        parts += [rest[: found.start()], call_of(rest[found.end() : end])]
        rest = rest[end + 1 :]
    text = "".join([*parts, rest])
    text = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"\1* \2 = (\1*)emulated::dynamic_shared();", text)
    kernel = re.compile(r"(template <[^>]*>)\s*__global__ void __launch_bounds__\((.*?)\)\s+(\w+)\(", re.DOTALL)
    if len(kernel.findall(text)) != text.count("__global__"):
        raise ValueError("a kernel is not a template with __launch_bounds__")
    return kernel.sub(r"\1 constexpr int most_threads_\3 = \2;\n\g<0>", text)


def closing(text: str, begin: int) -> int:
    """Where the parenthesis closes that was opened just before `begin`."""
    depth = 1
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
    raise ValueError(f"no end: {text[begin : begin + 80]}")


def call_of(statement: str) -> str:
    """The call for what stands in the parentheses of an asm statement."""
    found = re.match(r'\s*"([^"]*)"\s*((?::.*)?)$', re.sub(r'"\s*"', "", statement), re.DOTALL)
    operands = re.findall(r'"[=+]?[a-z]"\s*\(((?:[^()]|\([^()]*\))*)\)', found[2] if found else "")
    text = re.fullmatch(r"([\w.:]+)\s*([^;]*);", found[1]) if found else None
    if text is None or re.sub(r"%\d+|\d+|[\s{}\[\],]", "", text[2]):
        raise ValueError(f"not one instruction with plain operands: asm({statement})")
    values = [operands[int(one[1:])] if one[0] == "%" else one for one in re.findall(r"%?\d+", text[2])]
    return f"ptx::{re.sub('[.:]+', '_', text[1])}({', '.join(values)})"


def compiled(
    folder: Path, names: tuple[str, ...] = NAMES, options: tuple[str, ...] = FAST, change: tuple[str, str] | None = None
) -> ctypes.CDLL:
    """The kernels of these names, compiled into an empty folder. change: text that occurs once in one source, and what
    stands there instead. Raises RuntimeError with the compiler's message."""
    sources = {path.name: path.read_text() for path in (*SOURCES.glob("*.cu"), *SOURCES.glob("*.cuh"))}
    if change is not None:
        (changed,) = (name for name, text in sources.items() if text.count(change[0]) == 1)
        sources[changed] = sources[changed].replace(*change)
    for name, text in sources.items():
        (folder / name).write_text(translated(text))
    listed = ", ".join(f'emulated::kernel("{one}", most_threads_{one}, &{one})' for one in names)
    kernels = f"std::vector<emulated::Kernel> emulated::kernels() {{ return {{{listed}}}; }}"
    (folder / "kernels.cpp").write_text(f'#include "device.h"\n#include "matmul.cu"\n{kernels}\n')
    made = str(folder / "kernels.so")
    command = [*COMPILER, *options, f"-I{SHIM}", "-o", made, str(folder / "kernels.cpp")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = ctypes.CDLL(made)
    found.launch.restype = ctypes.c_char_p
    return found


@cache
def modules() -> tuple[ModuleType, ModuleType]:
    """`cuda_step` and `triton_step`. Without Triton they are not kept: what is emulated of them calls none of it."""
    package = "workers.rollout.graph"
    names = f"{package}.cuda_step", f"{package}.triton_step"
    if importlib.util.find_spec("triton") is not None:
        return importlib.import_module(names[0]), importlib.import_module(names[1])
    before = set(sys.modules)
    sys.modules.update(dict.fromkeys(("triton", "triton.language", "triton.language.extra"), MagicMock()))
    try:
        return importlib.import_module(names[0]), importlib.import_module(names[1])
    finally:  # later tests find no Triton, as before
        for name in set(sys.modules) - before:
            if name.startswith(("triton", package)):
                del sys.modules[name]
                vars(sys.modules[package]).pop(name.removeprefix(f"{package}."), None)


class Argument(ctypes.Structure):
    """As in device.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("number", ctypes.c_int),
        ("role", ctypes.c_int),
        ("writes", ctypes.c_void_p),
    )


@dataclass
class Device:
    """Called like the class `cuda.Kernels`, it gives what launches on itself.

    is_backward: the last threads and blocks come first, and copies are made at once; else the first, and late. writes:
    how many blocks of the last kernel wrote each element of its result. is_dry: launches are judged, but not run.
    """

    code: ctypes.CDLL
    is_dry: bool = False
    is_backward: bool = False
    writes: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __call__(self, source: Path, names: tuple[str, ...], device: torch.device) -> Device:
        return self

    def launch(
        self, name: str, grid: tuple[int, int, int], threads: int, shared: int, *arguments: Tensor | int
    ) -> None:
        """Raises RuntimeError at a launch that a GPU would refuse, and if a kernel does what it may not."""
        if shared > cuda.MAX_SHARED:
            raise RuntimeError(f"{name}: {shared} bytes of shared memory are more than {cuda.MAX_SHARED}")
        most = self.code.most_threads(name.encode())
        if not 0 < threads <= most or threads % 32 or max(grid[1:]) >= 1 << 16:
            raise RuntimeError(f"{name}: {threads} threads in {grid} blocks; at most {most}, in whole warps")
        if self.is_dry:
            return
        result = max(at for at, one in enumerate(arguments) if isinstance(one, Tensor))  # the last of the pointers
        out: Any = arguments[result]
        self.writes = torch.zeros(out.shape, dtype=torch.uint8)
        given = (Argument * len(arguments))()
        for at, one in enumerate(arguments):
            if not isinstance(one, Tensor):
                given[at] = Argument(None, 0, one, NUMBER, None)
            elif at == result:
                given[at] = Argument(one.data_ptr(), one.nbytes, 0, RESULT, self.writes.data_ptr())
            else:
                role = WRITTEN_BEFORE if at in PREVIOUS[name.partition("<")[0]] else WEIGHT
                given[at] = Argument(one.data_ptr(), one.nbytes, 0, role, None)
        size = (ctypes.c_uint * 3)(*grid)
        failure = self.code.launch(
            name.encode(), size, threads, ctypes.c_size_t(shared), given, len(given), self.is_backward
        )
        if failure is not None:
            raise RuntimeError(f"{name}: {failure.decode()}")
