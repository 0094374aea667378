"""Keeps what each job touches in few pages of memory.

A fork shares all pages, and one that is written afterwards costs a fault, if not a copy. Python writes to every object
that it looks at, because it counts references there. Scattered over the holes that a hundred loaded modules leave, the
objects of one job lie in many more pages than side by side. With another allocator than CPython's and the GNU library's
this costs a little memory and gains nothing.
"""

from __future__ import annotations

import ctypes

POOL_BYTES, POOL_HEAD = 1 << 14, 48
"""Python's allocator serves blocks of up to 512 bytes, in steps of 16, from pools of one size each."""
POOL_SIZES = range(48, 512 + 1, 16)
FRESH_BYTES = 1024
"""This much one behind the other, from the start of a pool on: it was empty, so none had room."""
SIZES = (*range(1 << 16, 1024, -512), *range(1024, 8, -16))
"""What the C library is asked for."""
MOST_BYTES = 4 << 20
"""Taken by one call at most."""

_libc = ctypes.PyDLL(None)
_malloc, _free = _libc.malloc, _libc.free
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_free.restype, _free.argtypes = None, [ctypes.c_void_p]

_taken: list[bytes] = []


def fill_holes() -> None:
    """Take the free blocks of all sizes, for good: what is allocated next lies in fresh memory, in its order."""
    _fill_heap()
    for size in POOL_SIZES:
        _fill_pools(size)


def _fill_heap() -> None:
    top, left = _malloc(120_000) or 0, MOST_BYTES
    for size in SIZES:
        while left > 0 and (block := _malloc(size)):
            if block > top:  # it fitted nowhere below
                _free(block)
                break
            left -= size


def _fill_pools(size: int) -> None:
    last, run = 0, -1
    for _ in range(MOST_BYTES // len(POOL_SIZES) // size):
        block = bytes(size - b"".__sizeof__())
        _taken.append(block)
        place = id(block)
        if place % POOL_BYTES == POOL_HEAD:
            run = 0
        elif run >= 0:
            run = run + 1 if place == last + size else -1
        if run * size > FRESH_BYTES:
            break
        last = place
