"""The points to send: committed steps and validations, as flat numbers. (pure)"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["train", "validation"]


@dataclass(frozen=True)
class Point:
    """All numbers of one step. at: UTC seconds."""

    kind: Kind
    step: int
    at: float
    values: Mapping[str, float]


def flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Finite numbers of nested mappings by their path, as in `pocket/mean/accuracy`; skips everything else."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[f"{prefix}{name}"] = float(value)
    return found
