"""GPUs by name: what they read and compute in a second. (pure)

Bandwidth and dense bfloat16 rates are those of the vendors' data sheets. `is_measured`: steps of ours were timed on it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CardSpeed:
    """bandwidth: bytes a second of its memory. flops: dense bfloat16 operations a second with float32 sums."""

    name: str
    bandwidth: float
    flops: float
    is_measured: bool = False


SPEEDS = (
    CardSpeed("H200", 4.8e12, 989e12, is_measured=True),
    CardSpeed("H100 PCIe", 2.0e12, 756e12),
    CardSpeed("H100", 3.35e12, 989e12, is_measured=True),
    CardSpeed("B200", 8.0e12, 2250e12),
    CardSpeed("A100-SXM4-80GB", 2.04e12, 312e12),
    CardSpeed("A100", 1.55e12, 312e12),
    CardSpeed("L40S", 0.864e12, 362e12),
    CardSpeed("L4", 0.3e12, 121e12),
    CardSpeed("A10", 0.6e12, 125e12),
    CardSpeed("RTX 5090", 1.79e12, 210e12),
    CardSpeed("RTX 5080", 0.96e12, 113e12),
    CardSpeed("RTX 4090", 1.008e12, 165e12),
    CardSpeed("RTX 4080", 0.717e12, 97e12),
    CardSpeed("RTX 4070", 0.504e12, 58e12),
    CardSpeed("RTX 4060", 0.272e12, 30e12),
    CardSpeed("RTX 3090", 0.936e12, 71e12),
    CardSpeed("RTX 3080", 0.76e12, 60e12),
    CardSpeed("RTX 3060", 0.36e12, 26e12),
)
"""The first whose name is part of the driver's name counts, so a longer name stands before a shorter one."""


def speed_of(name: str) -> CardSpeed | None:
    """The speed of a card by the driver's name for it; None if it is not in the table."""
    return next((one for one in SPEEDS if all(word in name for word in one.name.split())), None)
