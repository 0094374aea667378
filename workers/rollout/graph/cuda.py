"""CUDA C++ kernels, compiled on their first use on a machine by the compiler library (NVRTC) of PyTorch."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers.rollout.graph.made_once import Compiled, kept


def reason_against() -> str:
    """Why CUDA sources cannot be compiled here; empty if they can."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "cuda-bindings is not installed"
    try:
        from cuda.bindings import nvrtc

        checked(nvrtc.nvrtcVersion())
    except Exception as error:  # the libraries behind it raise any type
        return f"NVRTC cannot be used: {error}"
    return ""


class Kernels:
    """The kernels of one source file on one device. `name` may be a template with its arguments.

    From Hopper on, a kernel is launched before its predecessor is done, so every kernel must wait for it by itself.
    """

    def __init__(self, source: Path, names: tuple[str, ...], device: torch.device) -> None:
        """Raises RuntimeError with the compiler's message if the source does not compile."""
        from cuda.bindings import driver

        torch.zeros(1, device=device)  # the device's context must exist and be current
        found = compiled(source.read_text(), names, architecture_of(*torch.cuda.get_device_capability(device)))
        self._attributes = [chained()] if can_chain(device) else []
        self._module = checked(driver.cuModuleLoadData(found.image))
        self._functions = {
            name: checked(driver.cuModuleGetFunction(self._module, symbol)) for name, symbol in found.symbols.items()
        }
        for function in self._functions.values():
            largest = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(function, largest, MAX_SHARED))

    def launch(
        self, name: str, grid: tuple[int, int, int], threads: int, shared: int, *arguments: Tensor | int
    ) -> None:
        """Launch on the current stream. Tensors are passed as addresses, numbers as 32-bit integers."""
        from cuda.bindings import driver

        values = tuple(one.data_ptr() if isinstance(one, Tensor) else one for one in arguments)
        types = tuple(ctypes.c_void_p if isinstance(one, Tensor) else ctypes.c_int for one in arguments)
        stream = torch.cuda.current_stream().cuda_stream
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared, driver.CUstream(stream)
        config.attrs, config.numAttrs = self._attributes, len(self._attributes)
        checked(driver.cuLaunchKernelEx(config, self._functions[name], (values, types), 0))


MAX_SHARED = 64 << 10
HOPPER = 9, 0
"""Compute capability."""


def architecture_of(major: int, minor: int) -> str:
    """The compiler's name of a compute capability, with what only Hopper has."""
    return f"sm_{major}{minor}{'a' if (major, minor) == HOPPER else ''}"


def has_warpgroups(device: torch.device) -> bool:
    """Whether the tensor cores of four warps can work together (wgmma)."""
    return torch.cuda.get_device_capability(device) == HOPPER


def can_chain(device: torch.device) -> bool:
    """Whether a kernel may be launched before its predecessor is done, and wait inside (from Hopper on)."""
    return torch.cuda.get_device_capability(device) >= HOPPER


def chained() -> Any:
    """The launch attribute that lets a kernel start before its predecessor has ended."""
    from cuda.bindings import driver

    found, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
    found.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    value.programmaticStreamSerializationAllowed = 1
    found.value = value
    return found


@cache
def compiled(source: str, names: tuple[str, ...], architecture: str) -> Compiled:
    """The code of these kernels, from the disk if it was compiled before. The source may include the headers of this
    folder."""
    from cuda.bindings import nvrtc

    headers = {one.name: one.read_text() for one in sorted(Path(__file__).parent.glob("*.cuh"))}
    options = (f"--gpu-architecture={architecture}", "--std=c++17")
    facts = {
        "source": source,
        "headers": headers,
        "names": names,
        "options": options,
        "compiler": [int(part) for part in checked(nvrtc.nvrtcVersion())],
    }
    return kept(facts, lambda: _compile(source, headers, names, options), Compiled)


def _compile(source: str, headers: Mapping[str, str], names: tuple[str, ...], options: tuple[str, ...]) -> Compiled:
    """Raises RuntimeError with the compiler's message."""
    from cuda.bindings import nvrtc

    program = checked(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            b"kernels.cu",
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    for name in names:
        checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if int(status):
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode(errors="replace"))
    image = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, image))
    return Compiled(image, {name: checked(nvrtc.nvrtcGetLoweredName(program, name.encode())) for name in names})


def checked(result: tuple[Any, ...]) -> Any:
    """The result of a call of the bindings. Raises RuntimeError if the call failed."""
    status, *values = result
    if int(status):
        raise RuntimeError(f"{type(status).__name__} {int(status)}: {getattr(status, 'name', status)}")
    return values[0] if len(values) == 1 else tuple(values) if values else None
