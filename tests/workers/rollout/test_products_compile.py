"""The CUDA C++ kernels of a decode step compile for every generation of GPU, which need not be there."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.workers.rollout.emulation import NAMES, OF_HOPPER, SOURCES
from tests.workers.rollout.test_kernels_compile import SHARED_BYTES
from workers.rollout.graph import cuda

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(cuda.reason_against()), reason=cuda.reason_against()),
    pytest.mark.timeout(300),
]
FRAME_SIZE = 0x11
"""Attribute of a kernel: bytes of local memory that hold what does not fit into registers."""


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_kernel_compiles_and_fits_into_registers_and_shared_memory(capability: int) -> None:
    """Whatever a launch may ask for is there beside the arrays of a fixed size."""
    names = tuple(name for name in NAMES if capability == 90 or name not in OF_HOPPER)
    found = cuda.compiled((SOURCES / "matmul.cu").read_text(), names, cuda.architecture_of(*divmod(capability, 10)))
    sections = dict(sections_of(found.image))
    frames = dict(frames_of(sections))
    for name in names:
        symbol = found.symbols[name]
        _, fixed = sections[f".nv.shared.{symbol.decode()}"]
        assert fixed + cuda.MAX_SHARED <= SHARED_BYTES[capability], name
        assert frames[symbol] == 0, name


def sections_of(image: bytes) -> Iterator[tuple[str, tuple[bytes, int]]]:
    """Name, contents and bytes of each section of an ELF file of 64 bits. What is zero at first has no contents."""
    (begin,), (size, count, of_names) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<3H", image, 58)
    headers = [struct.unpack_from("<IIQQQQ", image, begin + number * size) for number in range(count)]
    names = image[headers[of_names][4] :]
    for name, kind, _, _, offset, length in headers:
        contents = b"" if kind == 8 else image[offset : offset + length]
        yield names[name:].partition(b"\0")[0].decode(), (contents, length)


def frames_of(sections: dict[str, tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Symbol and frame size of each function. An attribute is its format, its number and two bytes, which say how many
    follow if the format is 4."""
    (info, end), (symbols, _), (names, _) = (sections[name] for name in (".nv.info", ".symtab", ".strtab"))
    at = 0
    while at < end:
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if (form, attribute) == (4, FRAME_SIZE):
            number, size = struct.unpack_from("<II", info, at)
            (name,) = struct.unpack_from("<I", symbols, 24 * number)
            yield names[name:].partition(b"\0")[0], size
        at += length if form == 4 else 0
