"""The KL of tokens that the entropy mask drops: what the policy was sure of stays where it was. (pure)

A mask takes the policy term from these tokens; the update moves them all the same, through the weights that they share.
Among them, those whose log-probability and advantage stray from the mean together move the entropy most (the covariance
of arXiv 2505.22617), so they may be held more firmly.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kl_weights(
    keep: Tensor, log_probs: Tensor, advantages: Tensor, *, low: float, high: float = 0.0, share: float = 0.0
) -> Tensor:
    """[T] float32, over all tokens of an update: 0 where `keep` is true, `low` elsewhere, and `high` for the `share` of
    those elsewhere with the largest |advantage - mean| * |log_prob - mean|; of equal ones the earlier. Means are taken
    over the dropped tokens.

    keep: [T] bool; log_probs: of the policy that the ratio refers to, [T]; advantages: [T].
    """
    dropped = ~keep
    weights = torch.where(dropped, low, 0.0).float()
    count = int(share * int(dropped.sum()))
    if count:
        strays = [(one[dropped].double() - one[dropped].double().mean()).abs() for one in (log_probs, advantages)]
        largest = (strays[0] * strays[1]).sort(descending=True, stable=True).indices[:count]
        weights[dropped.nonzero().squeeze(1)[largest]] = high
    return weights
