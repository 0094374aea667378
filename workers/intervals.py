"""How sure a count of correct answers is. (pure)"""

from __future__ import annotations

from math import sqrt

Z_95 = 1.959964


def wilson(correct: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval of a proportion: (low, high), within 0 and 1. n = 0 knows nothing: (0, 1).

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927). Unlike the normal interval it never leaves [0, 1].
    """
    if n == 0:
        return 0.0, 1.0
    share = correct / n
    centre = share + z * z / (2 * n)
    spread = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
