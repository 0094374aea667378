"""Clipped policy loss on token ratios, and its diagnostics. (pure) No value function, no reward model, no reference.

Tensors are flat over the completion tokens of a micro-batch, [T], so no padding can leak into a mean.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Nats."""


class TokenLoss(NamedTuple):
    """losses: [T], before any mean. is_clipped: [T], where the clipped term was the larger loss, so no gradient
    flows."""

    losses: Tensor
    is_clipped: Tensor


def clipped_token_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    ratio_cap: float = 0.0,
) -> TokenLoss:
    """max(-A r, -A clip(r)) for each token; r = exp(log_probs - old_log_probs). All arguments: [T].

    ratio_cap: if above 0, caps r in the first term (dual clip, arXiv 1912.09729, as a cap on r).
    A log-ratio beyond `MAX_LOG_RATIO` is clamped and has no gradient: exp(89) is infinite, and infinity times 0 is NaN.
    Source: PPO, arXiv 1707.06347, Eq. 7, with a separate bound for each side.
    """
    ratio = torch.exp((log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    plain = -advantages * (ratio.clamp(max=ratio_cap) if ratio_cap else ratio)
    bounded = -advantages * ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    return TokenLoss(torch.maximum(plain, bounded), bounded > plain)


def truncated_importance_weights(old_log_probs: Tensor, rollout_log_probs: Tensor, cap: float) -> Tensor:
    """min(exp(old - rollout), cap) for each token, without gradient: a factor for its loss or its advantage.

    old_log_probs: of the trainer's policy before the step's first update; rollout_log_probs: as reported by the engine
    that drew the tokens. Both [T]; returns [T]. cap: above 0; raises ValueError otherwise.
    Source: truncated importance sampling, Ionides 2008; against engine mismatch, Yao et al. 2025 ("Your efficient RL
    framework secretly brings you off-policy RL training"), where the cap is 2.
    """
    if cap <= 0:
        raise ValueError(f"the cap of importance weights is {cap}, but must be above 0")
    # Cap before exp: a token that the engine almost ruled out would overflow.
    return (old_log_probs - rollout_log_probs).detach().clamp(max=math.log(cap)).exp()


def weights_of_tokens(log_ratio: Tensor, cap: float, mode: str) -> Tensor:
    """Weights from log(trainer's / engine's probability), [T], by one of two modes: [T], without gradient.

    token_truncate: min(r, cap); token_mask: r where r <= cap, else 0.
    """
    weights = truncated_importance_weights(log_ratio, torch.zeros_like(log_ratio), cap)
    return weights if mode == "token_truncate" else weights.masked_fill(log_ratio.detach() > math.log(cap), 0.0)


def token_entropy(logits: Tensor) -> Tensor:
    """Entropy of each token's distribution in nats. logits: [T, V]; returns [T]."""
    log_p = torch.log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(-1)


def k3(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """Per-token estimate of KL(policy that drew the tokens || other), never negative. [T] -> [T].

    log_probs: of the policy that drew them. Source: J. Schulman, "Approximating KL divergence", estimator k3.
    """
    log_ratio = other_log_probs - log_probs
    return torch.expm1(log_ratio) - log_ratio
