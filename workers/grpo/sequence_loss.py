"""The policy loss with one ratio for a whole rollout (GSPO, arXiv 2507.18071), over the fused head.

The ratio needs all log-probabilities of a rollout before the loss of its first token, so the head runs twice.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from workers.loss.fused_head import fused_log_probs
from workers.loss.fused_loss import PolicyLoss, Terms, Tokens, kl_losses, token_losses
from workers.loss.policy import clipped_token_loss


def sequence_policy_loss(
    hidden: Tensor,
    weight: Tensor | None,
    tokens: Tokens,
    terms: Terms,
    *,
    lengths: Tensor,
    divisor: Tensor,
    temperature: float,
    chunk: int,
    bias: Tensor | None = None,
    scale: float = 1.0,
    cap: float | None = None,
) -> PolicyLoss:
    """Like `fused_policy_loss`, with log r = the mean of log_probs - old over a rollout, for each of its tokens.

    lengths: [K] tokens of each rollout, in the order of the N tokens. Masks and token weights apply to each token's
    loss; the ratio always covers all tokens.
    """
    log_probs, entropy = fused_log_probs(
        hidden, weight, tokens.targets, temperature=temperature, chunk=chunk, bias=bias, scale=scale, cap=cap
    )
    old = log_probs.detach() if terms.is_detached else tokens.old_log_probs
    owners = torch.arange(len(lengths), device=old.device).repeat_interleave(lengths, output_size=len(old))
    sums = log_probs.new_zeros(len(lengths)).index_add(0, owners, log_probs - old)
    shared = old + (sums / lengths)[owners]
    plain = replace(terms, kl_coef=0.0, is_detached=False)
    asked = replace(tokens, old_log_probs=old, kl_weights=None)
    losses = token_losses(shared, entropy, asked, plain)
    if (kl := kl_losses(log_probs, tokens, terms)) is not None:
        losses = losses + kl
    clipped = clipped_token_loss(
        shared.detach(),
        old,
        tokens.advantages,
        clip_ratio_low=terms.clip_ratio_low,
        clip_ratio_high=terms.clip_ratio_high,
        ratio_cap=terms.ratio_cap,
    ).is_clipped
    return PolicyLoss((losses / divisor).sum(), log_probs.detach(), entropy.detach(), clipped, None)
