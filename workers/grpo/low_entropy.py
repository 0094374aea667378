"""A KL on the tokens that the entropy mask drops, so that confident predictions stay where they are. (pure)

The mask removes the policy term of these tokens, but the update still moves them through shared weights. Among them,
those whose log-probability and advantage deviate from the mean together change the entropy most (the covariance of
arXiv 2505.22617), so they can get a larger weight, as in SENT (arXiv 2512.04359).
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor


def kl_weights(
    keep: Tensor, log_probs: Tensor, advantages: Tensor, *, low: float, high: float = 0.0, share: float = 0.0
) -> Tensor:
    """[T] float32, over all tokens of an update: 0 where `keep` is true, else `low`, or `high` for the `share` of
    dropped tokens with the largest |advantage - mean| * |log_prob - mean|; the earlier first among equals. Means are
    over the dropped tokens.

    keep: [T] bool; log_probs: of the ratio's old policy, [T]; advantages: [T].
    """
    dropped = ~keep
    weights = torch.where(dropped, low, 0.0).float()
    count = int(Fraction(str(share)) * int(dropped.sum()))  # 0.29 * 100 is below 29 in floats
    if count:
        strays = [(one[dropped].double() - one[dropped].double().mean()).abs() for one in (log_probs, advantages)]
        largest = (strays[0] * strays[1]).sort(descending=True, stable=True).indices[:count]
        weights[dropped.nonzero().squeeze(1)[largest]] = high
    return weights
