"""Whether the weights of a rollout engine are those that the trainer sent: a number for each rank and tensor.

d = sum((x_i + 2^(b-1)) * (A * i + 1)) mod 2^64 over the bits of a part in row-major order. Two swapped rows, zeros in
place of a shard, weights of an earlier step, and a tensor that never came each change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.verl.slices import Layout

FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""A: odd, as a signed number of 64 bits."""
CHUNK = 1 << 24
"""Elements at one time: 128 MiB of 64-bit numbers."""
MOST_NAMED = 4
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
HEAD = "lm_head.weight"
MARK = "weights did not arrive"
"""In the text of the error, by which its end is known in a log."""

Digests = dict[str, int]


class SyncMismatch(RuntimeError):
    """An engine would draw rollouts with other weights than the trainer's."""


def digest(tensor: Tensor) -> int:
    """Of one tensor; computed where it lies. The order is that of its rows, whatever its strides."""
    flat = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    offset = 1 << (8 * tensor.element_size() - 1)
    for start in range(0, flat.numel(), CHUNK):
        values = flat[start : start + CHUNK].to(torch.int64)
        if tensor.element_size() < 8:
            values += offset
        places = torch.arange(start, start + values.numel(), dtype=torch.int64, device=flat.device)
        total += (values * (places * FACTOR + 1)).sum()
    return int(total)


def part_of(tensor: Tensor, layout: Layout, name: str, rank: int) -> Tensor:
    """What a rank should hold of the whole `tensor`."""
    part = layout.part(name, tuple(tensor.shape), rank)
    return tensor.narrow(part.dim, part.start, part.stop - part.start)


class Sent:
    """Takes down what passes on its way to an engine: rank -> name -> digest of that rank's part."""

    def __init__(self, layout: Layout, dtype: torch.dtype) -> None:
        """dtype: of the engine's weights, to which it rounds."""
        self._layout, self._dtype = layout, dtype
        self.by_rank: list[Digests] = [{} for _ in range(layout.ranks)]
        self.vocabulary = 0
        """Rows of the embedding."""

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same weights, one after the other. Raises UnknownLayout."""
        for name, tensor in weights:
            rounded = tensor.detach().to(self._dtype)
            if name.endswith("embed_tokens.weight"):
                self.vocabulary = rounded.shape[0]
            for rank, found in enumerate(self.by_rank):
                found[name] = digest(part_of(rounded, self._layout, name, rank))
            yield name, tensor


def held(named: Iterable[tuple[str, Tensor]], layout: Layout, vocabulary: int, rank: int) -> Digests:
    """Of what a rank of an engine holds, by the names of Hugging Face."""
    return {
        name: digest(tensor)
        for fused, whole in named
        for name, tensor in layout.unfused(fused, whole, vocabulary, rank)
    }


def differences(sent: Mapping[str, int], found: Mapping[str, int], layout: Layout) -> list[str]:
    """What differs on one rank, a few words each; empty: everything arrived. (pure)"""
    wanted = dict(sent)
    if layout.is_tied and HEAD not in found:
        wanted.pop(HEAD, None)
    missing = [f"{name} is not there" for name in sorted(wanted.keys() - found)]
    extra = [f"{name} was never sent" for name in sorted(found.keys() - wanted.keys())]
    return (
        missing + extra + [f"{name} differs" for name in sorted(wanted.keys() & found) if wanted[name] != found[name]]
    )


def refuse_mismatch(sent: Sequence[Mapping[str, int]], found: Sequence[Any], layout: Layout, engine: str) -> None:
    """found: digests of each rank of one engine. Raises SyncMismatch unless all are those that were sent."""
    wrong = [
        f"rank {rank}: {text}"
        for rank, wanted in enumerate(sent)
        for text in differences(wanted, found[rank] if rank < len(found) else {}, layout)
    ]
    if wrong:
        more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise SyncMismatch(f"{MARK} at the rollout engine {engine}: {'; '.join(wrong[:MOST_NAMED])}{more}")
