"""Random cases of a fused loss, the plain implementation beside it, and a record of what is allocated."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from workers.loss.fused_loss import Terms, Tokens


class Case(NamedTuple):
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    tokens: Tokens


def case(
    n: int = 13, h: int = 16, v: int = 97, *, dtype: torch.dtype = torch.float64, seed: int = 0, device: str = "cpu",
    is_frozen: bool = False, has_bias: bool = False, everything: bool = False,
) -> Case:  # fmt: skip
    """Random places of a head, and tokens whose ratio is near 1 but often beyond the clip bounds."""
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    hidden, weight, bias = normal(n, h), normal(v, h) / math.sqrt(h) * 2, normal(v)
    targets = torch.randint(v, (n,), generator=draws)
    hidden, weight, bias = (one.to(device, dtype).requires_grad_() for one in (hidden, weight, bias))
    with torch.no_grad():
        now, _ = plain_log_probs(hidden, weight, targets.to(device), 1.0, bias if has_bias else None)
    wide = torch.promote_types(dtype, torch.float32)

    def facts(values: Tensor) -> Tensor:
        return values.to(device, wide)

    tokens = Tokens(targets.to(device), now.to(wide) + facts(0.3 * normal(n)), facts(normal(n)))
    if everything:
        tokens = replace(
            tokens, tis_weights=facts(normal(n).abs()), keep=(normal(n) > 0).to(device),
            ref_log_probs=now.to(wide) + facts(0.5 * normal(n)),
        )  # fmt: skip
    return Case(hidden, weight.detach() if is_frozen else weight, bias if has_bias else None, tokens)


# --- the plain implementation: the formulas over all logits, and autograd ------------------------------------------


def plain_log_probs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.t() + (0.0 if bias is None else bias)
    log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature, -1)
    return log_p[torch.arange(len(targets)), targets], -(log_p.exp() * log_p).sum(-1)


def plain_loss(given_: Case, terms: Terms, divisor: float | Tensor, temperature: float) -> Tensor:
    tokens = given_.tokens
    new, entropy = plain_log_probs(given_.hidden, given_.weight, tokens.targets, temperature, given_.bias)
    ratio = (new - tokens.old_log_probs).clamp(-20, 20).exp()
    bounded = ratio.clamp(1 - terms.clip_ratio_low, 1 + terms.clip_ratio_high)
    losses = -torch.minimum(ratio * tokens.advantages, bounded * tokens.advantages)
    losses = losses * (1.0 if tokens.tis_weights is None else tokens.tis_weights)
    losses = losses * (1.0 if tokens.keep is None else tokens.keep)
    if terms.kl_coef and tokens.ref_log_probs is not None:
        delta = tokens.ref_log_probs - new
        losses = losses + terms.kl_coef * (delta.exp() - delta - 1)
    return ((losses - terms.entropy_coef * entropy) / divisor).sum()


def gradients(loss: Tensor, given_: Case) -> list[Tensor]:
    inputs = [one for one in given_[:3] if one is not None and one.requires_grad]
    return [found for found in torch.autograd.grad(loss, inputs)]


def assert_same(found: Any, expected: Any, atol: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=atol, atol=atol)


class Allocations(TorchDispatchMode):
    """Records the largest tensor that any operation returns, and how often a product with the head's logits is made."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.calls = 0, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.numel())
        self.calls.append(str(func))
        return result
