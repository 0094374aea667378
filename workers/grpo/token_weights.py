"""The weight of each token's loss, fixed for the whole update, so the size of micro-batches does not matter. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from profiles.schema import Grpo

Norm = Literal["token", "sequence", "constant"]


def token_weights(
    lengths: Sequence[int],
    kept: Sequence[bool],
    *,
    norm: Norm,
    denominator: Literal["kept", "all"] = "kept",
    longest: int = 0,
) -> list[float]:
    """For each rollout of one optimiser update, the factor on the losses of its tokens. [K] -> [K].

    lengths: tokens that count (all of a completion, or those that an entropy mask selects). longest: the most tokens a
    completion may have, for `constant`. Rollouts that are not kept get 0; with denominator "all" they still count.
    Raises ValueError if nothing is kept, or a kept rollout has no token. Sources: DAPO, arXiv 2503.14476 (token);
    DeepSeekMath, arXiv 2402.03300 (sequence); Dr. GRPO, arXiv 2503.20783 (constant).
    """
    if len(lengths) != len(kept) or not any(kept):
        raise ValueError(f"{sum(kept)} of {len(lengths)} rollouts are kept; an update needs at least one")
    if any(length < 1 for length, keep in zip(lengths, kept, strict=True) if keep):
        raise ValueError("a rollout without a token has no loss")
    counted = [length for length, keep in zip(lengths, kept, strict=True) if keep or denominator == "all"]
    rollouts = len(counted)
    if norm == "constant" and longest < max(counted):
        raise ValueError(f"a rollout of {max(counted)} tokens is longer than the longest allowed ({longest})")
    divisors = {
        "token": [sum(counted)] * len(lengths),
        "sequence": [rollouts * length for length in lengths],
        "constant": [rollouts * longest] * len(lengths),
    }[norm]
    return [1 / divisor if keep else 0.0 for divisor, keep in zip(divisors, kept, strict=True)]


def weights_of(
    grpo: Grpo, lengths: Sequence[int], selected: Sequence[int], kept: Sequence[bool], longest: int
) -> list[float]:
    """`token_weights` under a profile. selected: [K], tokens of each rollout that the entropy mask keeps."""
    counted = selected if grpo.variants.mask_norm == "selected" else lengths
    return token_weights(counted, kept, norm=grpo.norm, denominator=grpo.variants.denominator, longest=longest)


def masked_rollouts(grpo: Grpo, finish_reasons: Sequence[str]) -> list[bool]:
    """Which rollouts get no gradient because they were truncated at the length limit. [N] -> [N]."""
    return [grpo.truncated == "mask" and reason == "length" for reason in finish_reasons]
