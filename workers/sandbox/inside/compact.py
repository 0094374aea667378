"""Keeps the memory that each job touches within few pages.

After a fork all pages are shared, and the first write to a page costs a page fault and often a copy. Python writes to
every object it uses, to update its reference count. Loading a hundred modules leaves holes in the heap; objects
scattered over these holes occupy many more pages than contiguous ones. The code is tuned to CPython's and glibc's
allocators; with others it wastes a little memory and gains nothing.
"""

from __future__ import annotations

import ctypes

POOL_BYTES, POOL_HEAD = 1 << 14, 48
"""Size of a pool and of its header. Python's allocator serves blocks of up to 512 bytes, in steps of 16, from pools
that each hold one block size."""
POOL_SIZES = range(48, 512 + 1, 16)
FRESH_BYTES = 1024
"""So many contiguous bytes from the start of a pool mean that the pool was empty, hence no other pool had room."""
SIZES = (*range(1 << 16, 1024, -512), *range(1024, 8, -16))
"""Block sizes requested from `malloc`, in bytes."""
MOST_BYTES = 4 << 20
"""Maximum number of bytes that one call takes."""

_libc = ctypes.PyDLL(None)
_malloc, _free = _libc.malloc, _libc.free
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_free.restype, _free.argtypes = None, [ctypes.c_void_p]

_taken: list[bytes] = []


def fill_holes() -> None:
    """Permanently occupy free blocks of all sizes, so that later allocations are contiguous, in fresh memory."""
    _fill_heap()
    for size in POOL_SIZES:
        _fill_pools(size)


def _fill_heap() -> None:
    top, left = _malloc(120_000) or 0, MOST_BYTES
    for size in SIZES:
        while left > 0 and (block := _malloc(size)):
            if block > top:  # no hole of this size is left
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
