"""Divides the questions of an evaluation: into batches, and those among the jobs that share them. (pure)

A share is made of whole batches of the undivided evaluation. Kernels may round differently in batches of other sizes,
so this is what gives every question the same answer, however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

One = TypeVar("One")


def batches_of(questions: Sequence[One], size: int, length_of: Callable[[One], int]) -> list[list[One]]:
    """Batches of at most `size`, the longest first, so that an out-of-memory error shows at once."""
    longest_first = sorted(questions, key=length_of, reverse=True)
    return [longest_first[place : place + size] for place in range(0, len(longest_first), size)]


def share_of(batches: Sequence[One], number: int, shards: int) -> list[One]:
    """Every `shards`-th batch from `number` on. Neighbours have prompts of similar length, so shares cost alike."""
    return list(batches[number::shards])
