"""Confidence interval of an accuracy, the pass@k estimate, and quantiles. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

from profiles.metrics import QUANTILES, Metric

Z_95 = 1.959964


def wilson(correct: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson score interval of a proportion: (low, high), within [0, 1]. Returns (0, 1) for n = 0.

    correct: may be a sum of fractions, one per problem. Their variance is at most that of binary outcomes, so the
    interval is then too wide rather than too narrow.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927). Unlike the normal interval it never leaves [0, 1].
    """
    if n == 0:
        return 0.0, 1.0
    share = correct / n
    centre = share + z * z / (2 * n)
    spread = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of `k` samples of a problem is correct.

    1 - C(n - c, k) / C(n, k), computed as a product to avoid large binomials. Raises ValueError unless
    0 <= num_correct <= num_samples and 1 <= k <= num_samples. Source: arXiv 2107.03374, equation 1.
    """
    if not (0 <= num_correct <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"pass@{k} of {num_correct} right among {num_samples} samples")
    if num_samples - num_correct < k:
        return 1.0
    return 1.0 - prod(1.0 - k / i for i in range(num_samples - num_correct + 1, num_samples + 1))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ascending values lie, interpolated between the two nearest.

    Raises ValueError without values.
    """
    if not ordered:
        raise ValueError("there is no quantile without values")
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def spread_of(metric: Metric, values: Sequence[float]) -> dict[str, float]:
    """The metrics of a family such as `rewards/QUANTILE`; empty without values."""
    ordered = sorted(values)
    return {metric.of(f"p{percent}"): quantile(ordered, percent / 100) for percent in QUANTILES if ordered}
