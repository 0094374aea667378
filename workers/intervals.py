"""How sure a count of correct answers is, and what several samples of a problem tell. (pure)"""

from __future__ import annotations

from math import prod, sqrt

Z_95 = 1.959964


def wilson(correct: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval of a proportion: (low, high), within 0 and 1. n = 0 knows nothing: (0, 1).

    correct: may be a sum of shares, one a problem: their variance is at most that of yes and no, so that the interval
    is then too wide rather than too narrow.

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
    """Unbiased estimate that one of `k` samples of a problem is right, from `num_samples` of which some are.

    1 - C(n - c, k) / C(n, k), as a product, so that no binomial gets large. Raises ValueError unless
    0 <= num_correct <= num_samples and 1 <= k <= num_samples. Source: arXiv 2107.03374, equation 1.
    """
    if not (0 <= num_correct <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"pass@{k} of {num_correct} right among {num_samples} samples")
    if num_samples - num_correct < k:
        return 1.0
    return 1.0 - prod(1.0 - k / i for i in range(num_samples - num_correct + 1, num_samples + 1))
