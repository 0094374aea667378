"""The output head with what a family does to its logits: logits = cap(scale * (hidden weight^T + bias))."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from profiles.description import Architecture


def logits_of(model: Any, hidden: Tensor, architecture: Architecture | None) -> Tensor:
    """hidden: [..., H], normed; returns [..., V] in the dtype of the head. architecture: None is one without either."""
    logits: Tensor = model.lm_head(hidden)
    if architecture is None:
        return logits
    if architecture.logit_scale != 1.0:
        logits = logits * architecture.logit_scale
    return capped(logits, architecture.logit_cap)


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Soft cap: cap * tanh(x / cap); `x` itself without one."""
    return x if cap is None else (x / cap).tanh() * cap
