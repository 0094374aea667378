"""The policy loss over `fused_head`: forward and backward in one pass over chunks, with diagnostics at no extra cost.

Covers clipping, truncated importance sampling, entropy mask, KL to a reference and entropy bonus. The caller gives the
divisor, so it supports token, sequence and constant normalisation alike. `token_losses` is the loss as a plain
function.

Not here: a ratio of whole sequences, which first needs all log-probabilities of a rollout (`fused_log_probs`).
Sources: the terms of DeepSeekMath, arXiv 2402.03300; entropy mask ("forking tokens"), arXiv 2506.01939.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workers.loss.fused_head import CHUNK, fused_entropy, fused_log_probs, fused_loss
from workers.loss.policy import TokenLoss, clipped_token_loss, k3, weights_of_tokens

__all__ = [
    "CHUNK",
    "Diagnostics",
    "PolicyLoss",
    "Terms",
    "Tokens",
    "diagnostics",
    "fused_entropy",
    "fused_log_probs",
    "fused_loss",
    "fused_policy_loss",
    "token_losses",
]


@dataclass(frozen=True)
class Tokens:
    """The loss's inputs for N completion tokens, [N] each; None switches a term or weight off."""

    targets: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    tis_weights: Tensor | None = None
    """Truncated importance sampling: multiplies the policy term, not the KL; never differentiated."""
    keep: Tensor | None = None
    """bool, the entropy mask: other tokens have no policy term. KL and entropy bonus still cover all tokens."""
    ref_log_probs: Tensor | None = None
    kl_weights: Tensor | None = None
    """Weight of each token's KL on top of `kl_coef`; if set, the head reads all tokens."""

    def __getitem__(self, which: slice | Tensor) -> Tokens:
        held = {one.name: getattr(self, one.name) for one in fields(self)}
        chosen: dict[str, Any] = {name: None if value is None else value[which] for name, value in held.items()}
        return Tokens(**chosen)


@dataclass(frozen=True)
class Terms:
    """The terms of the loss: clip bounds of the ratio, weights of the KL to the reference and of the entropy bonus."""

    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    ratio_cap: float = 0.0
    """Cap of the ratio outside the clip; 0: no cap."""
    is_detached: bool = False
    """Use the current log-probs, detached, as the old ones: the ratio is 1."""
    is_kl_kept: bool = False
    """Limit the KL, too, to the tokens in `keep`."""
    tis_cap: float = 0.0
    """Above 0: truncated importance sampling without an earlier scoring pass. `old_log_probs` are then the engine's,
    and the current log-probs serve as the trainer's old ones. Requires `is_detached`."""
    tis_mode: str = "token_truncate"


class PolicyLoss(NamedTuple):
    """loss: scalar with gradient. The others have none, [n] each, for the tokens that the head read."""

    loss: Tensor
    log_probs: Tensor
    entropy: Tensor
    is_clipped: Tensor
    read: Tensor | None
    """[n] indices of the read tokens among the N; None: all were read."""
    tis_weights: Tensor | None = None
    is_cut: Tensor | None = None
    """Set if `terms.tis_cap` is: the weights, and which of them the cap cut."""


def token_losses(log_probs: Tensor, entropy: Tensor, tokens: Tokens, terms: Terms) -> Tensor:
    """keep * weight * clipped policy loss + kl_coef * k3 - entropy_coef * entropy: [N], before any divisor. (pure)"""
    losses = _clipped(log_probs, tokens, terms).losses
    if tokens.tis_weights is not None:
        losses = losses * tokens.tis_weights.detach()
    if terms.tis_cap:
        losses = losses * weights_of_tokens(log_probs - tokens.old_log_probs, terms.tis_cap, terms.tis_mode)
    if tokens.keep is not None:
        losses = torch.where(tokens.keep, losses, 0.0)
    if (kl := kl_losses(log_probs, tokens, terms)) is not None:
        losses = losses + kl
    if terms.entropy_coef != 0.0:
        losses = losses - terms.entropy_coef * entropy
    return losses


def kl_losses(log_probs: Tensor, tokens: Tokens, terms: Terms) -> Tensor | None:
    """Weight * k3 to the reference, [N]; None if no token has a weight. (pure)"""
    if tokens.ref_log_probs is None or (terms.kl_coef == 0.0 and tokens.kl_weights is None):
        return None
    kl = k3(log_probs, tokens.ref_log_probs)
    found = torch.zeros_like(kl)
    if terms.kl_coef != 0.0:
        found = terms.kl_coef * kl
        if terms.is_kl_kept and tokens.keep is not None:
            found = torch.where(tokens.keep, found, 0.0)
    return found if tokens.kl_weights is None else found + tokens.kl_weights * kl


def _clipped(log_probs: Tensor, tokens: Tokens, terms: Terms) -> TokenLoss:
    return clipped_token_loss(
        log_probs,
        log_probs.detach() if terms.is_detached else tokens.old_log_probs,
        tokens.advantages,
        clip_ratio_low=terms.clip_ratio_low,
        clip_ratio_high=terms.clip_ratio_high,
        ratio_cap=terms.ratio_cap,
    )


def fused_policy_loss(
    hidden: Tensor,
    weight: Tensor | None,
    tokens: Tokens,
    terms: Terms,
    *,
    divisor: float | Tensor,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    bias: Tensor | None = None,
    scale: float = 1.0,
    cap: float | None = None,
) -> PolicyLoss:
    """The sum of `token_losses` / divisor. Its gradient is ready on return, and logits are computed once.

    hidden, weight, bias, scale, cap, and weight None: as in `fused_log_probs`. divisor: of the whole minibatch, so
    that the size of micro-batches changes nothing; [N] if tokens differ, as in a mean per sequence. Tokens that `keep`
    drops cost nothing unless another term needs them: the head does not read them, and the diagnostics exclude them.
    Raises ValueError for shapes that do not fit, and for a KL without reference.
    """
    if (terms.kl_coef != 0.0 or tokens.kl_weights is not None) and tokens.ref_log_probs is None:
        raise ValueError(f"kl_coef = {terms.kl_coef}, or kl_weights, needs ref_log_probs")
    read = None
    is_kl_of_all = tokens.kl_weights is not None or (terms.kl_coef != 0.0 and not terms.is_kl_kept)
    if tokens.keep is not None and not is_kl_of_all and terms.entropy_coef == 0.0:
        read = tokens.keep.nonzero().squeeze(1)
        hidden, tokens = hidden[read], tokens[read]
        divisor = divisor[read] if isinstance(divisor, Tensor) else divisor

    def weighted(log_probs: Tensor, entropy: Tensor, part: slice) -> Tensor:
        by = divisor[part] if isinstance(divisor, Tensor) else divisor
        return token_losses(log_probs, entropy, tokens[part], terms) / by

    loss, log_probs, entropy = fused_loss(
        hidden, weight, tokens.targets, weighted, temperature=temperature, chunk=chunk, bias=bias, scale=scale, cap=cap
    )
    found = PolicyLoss(loss, log_probs, entropy, _clipped(log_probs, tokens, terms).is_clipped, read)
    if not terms.tis_cap:
        return found
    log_ratio = log_probs - tokens.old_log_probs
    weights = weights_of_tokens(log_ratio, terms.tis_cap, terms.tis_mode)
    return found._replace(tis_weights=weights, is_cut=log_ratio > math.log(terms.tis_cap))


class Diagnostics(NamedTuple):
    """Sums over the tokens that were read, and two maxima. Means are taken once, over all micro-batches."""

    tokens: float
    selected: float  # tokens with a policy term; the next three count only these
    entropy_selected: float
    clipped_low: float
    clipped_high: float
    entropy: float
    mismatch: float  # |log_ratio|
    mismatch_kl: float  # k3 from the policy that drew the tokens to the one in training
    kl: float  # k3 to the reference
    ratio: float
    tis_weight: float
    tis_cut: float  # tokens whose weight the cap cut
    mismatch_max: float
    ratio_max: float


def diagnostics(found: PolicyLoss, tokens: Tokens) -> Diagnostics:
    """Diagnostics from values that the loss computed anyway; synchronises. tokens: the N passed to the loss."""
    return Diagnostics(*measured(found, tokens).tolist())


def measured(found: PolicyLoss, tokens: Tokens) -> Tensor:
    """The fields of `Diagnostics`, still on the device: a pass that waits for them lets a GPU run dry."""
    if found.read is not None:
        tokens = tokens[found.read]
    log_ratio = found.log_probs - tokens.old_log_probs
    none = log_ratio.new_zeros(1)
    ratio = log_ratio.exp() if found.tis_weights is None else torch.ones_like(log_ratio)
    weights, cut = (none if one is None else one for one in (found.tis_weights, found.is_cut))
    keep = torch.ones_like(found.is_clipped) if tokens.keep is None else tokens.keep
    clipped, is_up = found.is_clipped & keep, tokens.advantages > 0  # a positive advantage hits the upper bound
    kl = none if tokens.ref_log_probs is None else k3(found.log_probs, tokens.ref_log_probs)
    drift = k3(tokens.old_log_probs, found.log_probs)
    summed = (
        torch.ones_like(ratio),
        keep,
        found.entropy * keep,
        clipped & ~is_up,
        clipped & is_up,
        found.entropy,
        log_ratio.abs(),
        drift,
        kl,
        ratio,
        weights,
        cut,
    )
    largest = (torch.cat([one, none]).max() for one in (log_ratio.abs(), ratio))
    return torch.stack([*(one.sum().to(ratio.dtype) for one in summed), *largest])
