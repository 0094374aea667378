"""How far apart two floating-point results of the same numbers may be: bounds from the arithmetic, for any processor.

Higham, Accuracy and Stability of Numerical Algorithms (2002), chapters 3 and 4: a sum or a product of n factors, in
whatever order, is off by at most gamma(n) = n u / (1 - n u) times the sum of its absolute values, where u is the unit
roundoff, half of the distance from 1 to the next number. Kernels of other vector widths, threads and batches of other
shapes differ by nothing but the order of sums and by fused multiply-adds, so these bounds hold for all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def unit_roundoff(dtype: torch.dtype = torch.float32) -> float:
    return torch.finfo(dtype).eps / 2


def gamma(operations: int, dtype: torch.dtype = torch.float32) -> float:
    """The relative error of a result that so many roundings lead to. Raises ValueError where they leave no digit."""
    share = operations * unit_roundoff(dtype)
    if share >= 1:
        raise ValueError(f"{operations} roundings in {dtype} leave no digit that is certain")
    return share / (1 - share)


def bound(operations: int, magnitude: float | Tensor, dtype: torch.dtype = torch.float32) -> float | Tensor:
    """How far apart two such results may be, each off by its own roundings.

    magnitude: the sum of the absolute values of what is added, or the largest entry where results are whole tensors.
    """
    return 2 * gamma(operations, dtype) * magnitude


def passes(model: nn.Module, tokens: int) -> int:
    """Roundings on the longest way through a model, forward and back: each matrix adds up its inputs for the outputs,
    and its outputs for the gradient of the inputs; a gradient then adds up what all tokens give it."""
    matrices = [one.weight for one in model.modules() if isinstance(one, nn.Linear)]
    return tokens + sum(sum(one.shape) for one in matrices)


def adamw_bound(gradients: Tensor, apart: Tensor, learning_rate: float, eps: float) -> Tensor:
    """How far apart AdamW's first steps are, elementwise, where its gradients are `apart`.

    The step is lr g / (|g| + eps), with the slope lr eps / (|g| + eps)^2: a gradient well above eps moves it by next to
    nothing, one that is all rounding, as small as eps, may turn it around.
    """
    smallest = (gradients.abs() - apart).clamp(min=0)
    return learning_rate * (apart * eps / (smallest + eps) ** 2).clamp(max=2.0)
