"""Our own LoRA (arXiv 2106.09685): the same numbers as peft with fewer kernels. No dropout, no merging, one adapter.

y = base(x) + scale * (x A^T) B^T, computed in the dtype of x from copies of the float32 matrices, which are cast once
after each change. Modules look like peft's from outside (`base_layer`, `lora_A["default"].weight`, `scaling`), so
engines, checkpoints and optimiser state work with either.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from profiles.schema import Adapter as Knobs
from workers.rng import derive

ADAPTER = "default"
_changes = count(1)
"""Numbers for changes of matrices that no counter records."""


def scale_of(knobs: Knobs) -> float:
    """The factor on the product of the matrices; rank-stabilised as in arXiv 2312.03732 on request. (pure)"""
    return knobs.alpha / (math.sqrt(knobs.rank) if knobs.rslora else knobs.rank)


def inject(model: nn.Module, knobs: Knobs, seed: int) -> None:
    """Put an adapter beside each linear layer of `model` that `knobs.targets` names. Freezes nothing.

    Each A depends only on the seed and its layer's name, not on the rest of the model.
    """
    targets = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in knobs.targets
    ]
    for name, module in targets:
        parent, _, last = name.rpartition(".")
        adapted = LoraLinear(module, knobs.rank, scale_of(knobs), derive(seed, 0, f"adapter {name}"))
        setattr(model.get_submodule(parent), last, adapted)


class Matrix(nn.Module):
    """One trained matrix, [out, in], float32. It is a module so that its parameter gets the name that peft uses."""

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns, device=device))


class LoraLinear(nn.Module):
    """A frozen linear layer of any precision with a trained pair of matrices beside it."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, seed: int) -> None:
        super().__init__()
        self.base_layer = base
        self.in_features, self.out_features = base.in_features, base.out_features
        device = base.weight.device
        self.lora_A = nn.ModuleDict({ADAPTER: Matrix(rank, base.in_features, device)})
        self.lora_B = nn.ModuleDict({ADAPTER: Matrix(base.out_features, rank, device)})
        self.scaling = {ADAPTER: scale}
        self.is_enabled = True
        self._copies: dict[bool, tuple[Any, Tensor, Tensor]] = {}
        """Whether they are those of `copies_apart` -> their key, A, B."""
        self._unseen = 0
        if device.type != "meta":
            bound = 1 / math.sqrt(base.in_features)  # Kaiming's bound for a = sqrt(5), as in peft
            drawn = torch.rand(rank, base.in_features, generator=torch.Generator().manual_seed(seed))
            self.matrices[0].data.copy_(drawn.mul_(2 * bound).sub_(bound))
        _watch_optimizers()

    @property
    def matrices(self) -> tuple[nn.Parameter, nn.Parameter]:
        """A [rank, in], B [out, rank]."""
        a: Any = self.lora_A[ADAPTER]
        b: Any = self.lora_B[ADAPTER]
        return a.weight, b.weight

    @property
    def scale(self) -> float:
        return self.scaling[ADAPTER]

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in]; returns [..., out] in the dtype of x."""
        base: Tensor = self.base_layer(x)
        if not self.is_enabled:
            return base
        add: Any = _AddProduct.apply
        found: Tensor = add(base, x, *self.matrices, *self.cast(x.dtype), self.scale)
        return found

    @property
    def state(self) -> tuple[int, ...]:
        """A key that changes whenever the values of the matrices do."""
        a, b = self.matrices
        return a._version, b._version, a.data_ptr(), b.data_ptr(), self._unseen

    def forget_copies(self) -> None:
        """Drop the cast copies after a change that no counter records."""
        self._unseen = next(_changes)  # a new number, even if another thread does the same now

    def cast(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Both matrices in `dtype`. A change yields a new pair and leaves the old one intact: two threads may
        decode."""
        a, b = self.matrices
        if a.dtype == dtype:
            return a.detach(), b.detach()
        is_apart = are_copies_apart()
        key, kept = (dtype, *self.state), self._copies.get(is_apart)
        if kept is None or kept[0] != key:
            # A rollout may be the first caller, and autograd cannot use tensors made in inference mode.
            with torch.inference_mode(False), torch.no_grad():
                kept = self._copies[is_apart] = (key, a.to(dtype), b.to(dtype))
        return kept[1], kept[2]


def adapted_in(model: nn.Module) -> list[LoraLinear]:
    """The layers of a model that have an adapter."""
    return [module for module in model.modules() if isinstance(module, LoraLinear)]


class _AddProduct(torch.autograd.Function):
    """base + scale * (x A^T) B^T, with gradients for the float32 matrices from products in the dtype of x."""

    @staticmethod
    def forward(
        ctx: Any, base: Tensor, x: Tensor, a: Tensor, b: Tensor, a_cast: Tensor, b_cast: Tensor, scale: float
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # [N, in]
        inner = (rows @ a_cast.t()).mul_(scale)  # [N, rank]
        ctx.save_for_backward(rows, inner, a_cast, b_cast)
        ctx.scale, ctx.dtypes = scale, (a.dtype, b.dtype)
        return torch.addmm(base.reshape(-1, base.shape[-1]), inner, b_cast.t()).view(base.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        rows, inner, a_cast, b_cast = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])  # [N, out]
        grad_inner = (flat @ b_cast).mul_(ctx.scale)  # [N, rank]
        wants_x, wants_a, wants_b = ctx.needs_input_grad[1:4]
        grad_x = (grad_inner @ a_cast).view(*grad.shape[:-1], -1) if wants_x else None
        grad_a = (grad_inner.t() @ rows).to(ctx.dtypes[0]) if wants_a else None
        grad_b = (flat.t() @ inner).to(ctx.dtypes[1]) if wants_b else None
        return grad, grad_x, grad_a, grad_b, None, None, None


_apart: set[int] = set()
"""Threads inside `copies_apart`."""


def are_copies_apart() -> bool:
    """Whether this thread is inside `copies_apart`."""
    return threading.get_ident() in _apart


@contextmanager
def copies_apart() -> Iterator[None]:
    """Inside, this thread has cast copies of its own. Those of another CUDA stream may not hold their values yet, and
    those that a graph captures never do."""
    thread = threading.get_ident()
    _apart.add(thread)
    try:
        yield
    finally:
        _apart.discard(thread)


_watched: list[Any] = []


def _watch_optimizers() -> None:
    """Count the changes that fused and 8-bit optimisers make without autograd's version counter; else casts go
    stale."""
    if not _watched:
        _watched.append(register_optimizer_step_post_hook(_count_change))


def _count_change(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    changed = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    torch.autograd.graph.increment_version(changed)
