"""Selects tokens that get a gradient: those where the policy was unsure when it drew them. (pure, except one small
file)

The selection covers all tokens of an optimiser update, never one micro-batch, whose size must not change the result.
Tensors are flat over the completion tokens of the update's rollouts, [T]; `lengths` [K] sum to T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from profiles.schema import Grpo

DECAY = 0.95
"""Weight of the old value in the running threshold."""

Kind = Literal["off", "percentile", "threshold", "running"]


class Selection(NamedTuple):
    """mask: [T] bool. threshold: in nats; None if none was needed. share: of the eligible tokens that are kept."""

    mask: Tensor
    threshold: float | None
    share: float


def quantile(entropies: Tensor, keep: float) -> float:
    """The value above which a share of `keep` lies, interpolated between its neighbours. entropies: [T], T >= 1.

    Positions use exact arithmetic: 1 - 0.7 in floats would step over a value that belongs to the kept share. The order
    of the entropies does not matter.
    """
    values = entropies.double().sort().values
    place = (1 - Fraction(str(keep))) * (len(values) - 1)
    below = int(place)
    low, high = float(values[below]), float(values[min(below + 1, len(values) - 1)])
    return low if place == below or low == high else low + float(place - below) * (high - low)


def select_tokens(
    entropies: Tensor,
    lengths: Sequence[int],
    *,
    kind: Kind,
    keep: float = 0.5,
    threshold: float = 0.0,
    min_tokens: int = 0,
    eligible: Sequence[bool] | None = None,
) -> Selection:
    """Tokens that keep their gradient.

    entropies: [T] nats, of the policy that drew the tokens. eligible: [K], rollouts with a weight; tokens of others are
    ignored. `percentile`: entropy >= the quantile of 1 - keep, so ties with it are kept; `running`: the same with the
    running threshold. `threshold`: entropy > threshold. If fewer than `min_tokens` of a rollout pass, it keeps its
    `min_tokens` highest instead, the earlier first among equals. Raises ValueError for entropies that are not finite.
    Source: selective backpropagation as in arXiv 2506.01939 (percentile over the batch).
    """
    rows = _rows(entropies, lengths, eligible)
    counts = torch.zeros(len(entropies), dtype=torch.bool, device=entropies.device)
    for start, end in rows:
        counts[start:end] = True
    among = entropies[counts]
    if not torch.isfinite(among).all():
        raise ValueError("an entropy is not finite: it cannot be compared")
    if kind == "off" or len(among) == 0:
        return Selection(counts, None, 1.0 if len(among) else 0.0)
    if kind == "percentile":
        threshold = quantile(among, keep)
    values = entropies.double()
    mask = counts & (values > threshold if kind == "threshold" else values >= threshold)
    for start, end in rows:
        wanted = min(min_tokens, end - start)
        if int(mask[start:end].sum()) < wanted:
            # These include the tokens over the threshold. Stable sort: of equal entropies the earlier token wins.
            best = entropies[start:end].sort(descending=True, stable=True).indices[:wanted]
            mask[start + best] = True
    return Selection(mask, threshold, int(mask.sum()) / len(among))


def _rows(entropies: Tensor, lengths: Sequence[int], eligible: Sequence[bool] | None) -> list[tuple[int, int]]:
    """Start and end of the tokens of each eligible rollout."""
    if entropies.dim() != 1 or sum(lengths) != len(entropies):
        raise ValueError(f"{tuple(entropies.shape)} entropies for rollouts of {sum(lengths)} tokens")
    rows, start = [], 0
    for place, length in enumerate(lengths):
        if eligible is None or eligible[place]:
            rows.append((start, start + length))
        start += length
    return rows


class EntropyMask:
    """The profile's mask. Registered: with kind "running" the next threshold depends on earlier ones."""

    filename = "entropy_mask.json"

    def __init__(self, grpo: Grpo) -> None:
        self._grpo = grpo
        self.threshold: float | None = None
        """Running threshold in nats; None before the first update."""

    def select(self, entropies: Tensor, lengths: Sequence[int], eligible: Sequence[bool] | None = None) -> Selection:
        """`select_tokens` under the profile. With kind "running" it also updates the running threshold."""
        grpo = self._grpo
        threshold = grpo.variants.entropy_threshold
        if grpo.entropy_mask == "running":
            rows = _rows(entropies, lengths, eligible)
            if rows and any(end > start for start, end in rows):
                self.threshold = self._moved(torch.cat([entropies[start:end] for start, end in rows]))
            threshold = self.threshold or 0.0
        return select_tokens(
            entropies,
            lengths,
            kind=grpo.entropy_mask,
            keep=grpo.entropy_keep,
            threshold=threshold,
            min_tokens=grpo.entropy_min_tokens,
            eligible=eligible,
        )

    def _moved(self, among: Tensor) -> float:
        now = quantile(among, self._grpo.entropy_keep)
        if self.threshold is None or not math.isfinite(now):
            return now
        return DECAY * self.threshold + (1 - DECAY) * now

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode({"threshold": self.threshold}))

    def load(self, path: Path) -> None:
        self.threshold = msgspec.json.decode(path.read_bytes())["threshold"]
