"""Operations on one chunk of logits: statistics of its rows, then the gradient of the loss, in place of the logits.

Two implementations of one interface, `read` and `gradient`: PyTorch everywhere, and Triton on CUDA where it works. On
CUDA PyTorch goes over the chunk ten times and Triton three times; each pass over 128 rows of 151 936 moves 74 MiB.

    log_probs = z[target] - log sum exp z          entropy = log sum exp z - sum p z
    dz = g (onehot(target) - p) - e p (log p + entropy),    g, e: gradients of the loss by log_probs and by entropy
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from workers.failures import is_out_of_memory
from workers.head_products import blocks_of, logits_buffer

TILE = 8192
"""Vocabulary entries converted or multiplied at a time where a temporary tensor is unavoidable."""


class Chunk(Protocol):
    """Buffers for one chunk of at most C rows of logits, reused for the next one."""

    logits: Tensor  # [C, V]

    def read(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(log_probs, entropy), [c] each, of the first c = len(targets) rows of `logits`."""

    def gradient(self, targets: Tensor, g: Tensor, e: Tensor | None) -> Tensor:
        """[c, V]. Call it after `read` of the same rows. g, e: [c]; e is None if the loss ignores the entropy."""


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums: float32, but float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def chunk_for(rows: int, weight: Tensor) -> Chunk:
    """Buffers of `rows` rows for logits of the head `weight`, [V, H]."""
    shape = (rows, weight.shape[0])
    if weight.is_cuda and weight.dtype != torch.float64 and has_triton(weight.device):
        return TritonChunk(shape, weight)
    return TorchChunk(shape, weight)


class TorchChunk:
    """PyTorch. Everything happens in two buffers: a temporary of the chunk's size would double the memory."""

    def __init__(self, shape: tuple[int, int], weight: Tensor) -> None:
        self.logits = weight.new_empty(shape, dtype=accumulator(weight.dtype))
        self._exp = torch.empty_like(self.logits)

    def read(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        z, exp = self.logits[: len(targets)], self._exp[: len(targets)]
        z -= z.amax(1, keepdim=True)
        torch.exp(z, out=exp)
        self._total = exp.sum(1)
        log_total = self._total.log()
        # By tiles: the whole product would be a third [c, V], and a dot product is off by 1e-4 for 151 936.
        tiles = [slice(begin, begin + TILE) for begin in range(0, z.shape[1], TILE)]
        inner = torch.stack([(exp[:, tile] * z[:, tile]).sum(1) for tile in tiles]).sum(0)
        self._log_total, self._entropy = log_total, log_total - inner / self._total
        return z.gather(1, targets[:, None]).squeeze(1) - log_total, self._entropy

    def gradient(self, targets: Tensor, g: Tensor, e: Tensor | None) -> Tensor:
        rows = torch.arange(len(targets), device=targets.device)
        dz = self._exp[: len(targets)]
        if e is None:
            dz *= (-g / self._total)[:, None]
        else:
            # Here log p + entropy = z + entropy - log_total.
            factor = self.logits[: len(targets)]
            factor += (self._entropy - self._log_total)[:, None]
            factor *= e[:, None]
            factor += g[:, None]
            dz *= factor
            dz /= -self._total[:, None]
        dz[rows, targets] += g
        return dz


class TritonChunk:
    """Triton: one pass for the statistics, one for the gradient, which also rounds it to the head's own dtype."""

    def __init__(self, shape: tuple[int, int], weight: Tensor) -> None:
        self.logits = logits_buffer(shape[0], weight, torch.float32)
        # A float32 gradient takes the logits' place; a 16-bit one cannot overwrite 32-bit logits in place.
        self._dz = self.logits if weight.dtype == torch.float32 else logits_buffer(shape[0], weight, weight.dtype)

    def read(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, self._norm, self._entropy = kernels().statistics(self.logits, targets)
        return log_probs, self._entropy

    def gradient(self, targets: Tensor, g: Tensor, e: Tensor | None) -> Tensor:
        kernels().gradient(self.logits, targets, self._norm, self._entropy, g, e, out=self._dz)
        return self._dz[: len(targets)]


def kernels() -> ModuleType:
    from workers.loss import fused_triton

    return fused_triton


@cache
def has_triton(device: torch.device) -> bool:
    """Whether the kernels compile on `device` and agree with PyTorch there; warns once if not."""
    try:
        logits = torch.linspace(-9, 9, 3 * 1000, device=device).reshape(3, 1000).sin() * 5
        targets, g = torch.tensor([0, 500, 999], device=device), torch.tensor([1.0, -2.0, 0.5], device=device)
        weight = torch.empty(1000, 1, device=device)
        found = []
        for kind in (TorchChunk, TritonChunk):
            chunk = kind((3, 1000), weight)
            chunk.logits.copy_(logits)
            found.append([*chunk.read(targets), chunk.gradient(targets, g, g.flip(0))])
        is_same = all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(*found, strict=True))
        problem = "" if is_same else "they disagree with PyTorch"
    except Exception as error:  # compilers raise any type, and nothing is lost: PyTorch computes the same
        if is_out_of_memory(error):  # temporary, whereas this answer is kept for the life of the process
            raise
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem:
        warnings.warn(f"the loss runs without its Triton kernels: {problem}", stacklevel=2)
    return not problem


# --- products with the head; sums in float32 also for 16-bit factors ----------------------------------------------


def logits_into(out: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> None:
    """out = (hidden weight^T + bias) / temperature. hidden: [c, H], weight: [V, H], out: [c, V] in float32."""
    if hidden.dtype == out.dtype:
        torch.mm(hidden, weight.t(), out=out)
    elif hidden.is_cuda:
        for block in blocks_of(len(weight)):
            torch.mm(hidden, weight[block].t(), out_dtype=out.dtype, out=out[:, block])
    else:
        wide = hidden.to(out.dtype)
        for begin in range(0, len(weight), TILE):
            out[:, begin : begin + TILE] = wide @ weight[begin : begin + TILE].to(out.dtype).t()
    if bias is not None:
        out += bias
    if temperature != 1.0:
        out /= temperature


def times_weight(dz: Tensor, weight: Tensor) -> Tensor:
    """dz weight. dz: [c, V], weight: [V, H]; returns [c, H] in float32."""
    wide = accumulator(weight.dtype)
    if weight.dtype == wide:
        return dz @ weight
    if weight.is_cuda:
        dz = dz.to(weight.dtype)
        first, *rest = (torch.mm(dz[:, block], weight[block], out_dtype=wide) for block in blocks_of(len(weight)))
        return first.add_(rest[0]) if rest else first
    total = dz.new_zeros(len(dz), weight.shape[1])
    for begin in range(0, len(weight), TILE):
        total += dz[:, begin : begin + TILE] @ weight[begin : begin + TILE].to(wide)
    return total


def add_outer(total: Tensor, dz: Tensor, hidden: Tensor) -> None:
    """total += dz^T hidden. total: [V, H] in float32, dz: [c, V], hidden: [c, H]."""
    if hidden.dtype == total.dtype:
        total.addmm_(dz.t(), hidden)
        return
    for begin in range(0, len(total), TILE):
        part = dz[:, begin : begin + TILE].t()
        if hidden.is_cuda:
            total[begin : begin + TILE] += torch.mm(part.to(hidden.dtype), hidden, out_dtype=total.dtype)
        else:
            total[begin : begin + TILE] += part @ hidden.to(total.dtype)
