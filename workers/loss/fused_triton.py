"""Triton kernels of the fused loss. Import it only where Triton runs. One program per row, or per block of a row."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(log_probs, log sum exp, entropy), [c] each, of the first c = len(targets) rows. logits: [C, V] in float32."""
    found = logits.new_empty(3, len(targets))
    if not len(targets):
        return found[0], found[1], found[2]
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]  # a kernel runs on the current device, whatever its arguments are on
        _statistics[(len(targets),)](
            logits, targets, found[0], found[1], found[2], logits.shape[1], logits.stride(0), BLOCK=BLOCK, num_warps=16
        )
    return found[0], found[1], found[2]


def gradient(
    logits: Tensor, targets: Tensor, norm: Tensor, entropy: Tensor, g: Tensor, e: Tensor | None, *, out: Tensor
) -> None:
    """Writes the first len(targets) rows of out: [C, V], of any dtype, or `logits` itself. The rest: [c] each."""
    grid = (len(targets), triton.cdiv(logits.shape[1], BLOCK))
    if not len(targets):
        return
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]
        _gradient[grid](
            logits,
            out,
            targets,
            norm,
            entropy,
            g,
            g if e is None else e,
            logits.shape[1],
            logits.stride(0),
            out.stride(0),
            HAS_ENTROPY=e is not None,
            BLOCK=BLOCK,
            num_warps=8,
        )


@triton.jit
def _statistics(logits, targets, log_probs, norm, entropy, width, stride, BLOCK: tl.constexpr):
    # Each lane keeps its own maximum, sum and weighted sum; the lanes are combined once, after the loop.
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    lanes = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -1e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    inner = tl.zeros((BLOCK,), tl.float32)  # sum of exp(z - top) (z - top)
    for begin in range(0, width, BLOCK):
        z = tl.load(base + begin + lanes, mask=begin + lanes < width, other=-1e38)
        above = tl.maximum(top, z)
        shrink = tl.exp(top - above)
        # A position beyond the width, or a lane without values yet, contributes nothing: exp(-1e38 + 1e38) would be 1.
        exp = tl.where(z > -1e38, tl.exp(z - above), 0.0)
        inner = (inner + total * (top - above)) * shrink + exp * (z - above)
        total = total * shrink + exp
        top = above
    best = tl.max(top, 0)
    shrink = tl.exp(top - best)
    all_total = tl.sum(total * shrink, 0)
    all_inner = tl.sum((inner + total * (top - best)) * shrink, 0)
    log_total = tl.log(all_total)
    picked = tl.load(base + tl.load(targets + row))
    tl.store(norm + row, best + log_total)
    tl.store(log_probs + row, picked - best - log_total)
    tl.store(entropy + row, log_total - all_inner / all_total)


@triton.jit
def _gradient(
    logits, out, targets, norm, entropy, g, e, width, stride, out_stride, HAS_ENTROPY: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    z = tl.load(logits + row * stride + columns, mask=inside, other=0.0)
    log_p = z - tl.load(norm + row)
    weight = tl.load(g + row)
    is_target = columns == tl.load(targets + row)
    dz = tl.where(is_target, weight, 0.0)
    if HAS_ENTROPY:
        weight += tl.load(e + row) * (log_p + tl.load(entropy + row))
    dz -= tl.exp(log_p) * weight
    tl.store(out + row * out_stride + columns, dz.to(out.dtype.element_ty), mask=inside)
