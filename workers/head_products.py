"""Products with an output head whose vocabulary may have any size."""

from __future__ import annotations

import torch
from torch import Tensor

EVEN = 8
"""Numbers in 16 bytes of bfloat16. cuBLAS has fast kernels only for sizes that are multiples of it: one H100 took 218
microseconds for the 49,159 words of Granite 3, and 78 for 49,160."""


def blocks_of(vocabulary: int) -> list[slice]:
    """The words as two blocks: a multiple of EVEN, and the few that are left. Empty blocks are omitted. (pure)"""
    even = vocabulary // EVEN * EVEN
    return [block for block in (slice(0, even), slice(even, vocabulary)) if block.start < block.stop]


def logits_buffer(rows: int, head: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, V], uninitialised; each row begins at a multiple of EVEN numbers."""
    vocabulary = len(head)
    return head.new_empty(rows, -(-vocabulary // EVEN) * EVEN, dtype=dtype)[:, :vocabulary]


def times_head(x: Tensor, head: Tensor) -> Tensor:
    """x head^T, [M, V], without gradient. x: [M, H], head: [V, H]."""
    found = logits_buffer(len(x), head, head.dtype)
    for block in blocks_of(len(head)):
        torch.mm(x, head[block].T, out=found[:, block])
    return found
