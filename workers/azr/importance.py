"""Corrects for a rollout engine whose log_probs differ from the trainer's: rescores rows and adds importance weights.

With rescored log_probs, the ratio in the clipped loss compares the policy with itself as it was before the step's first
update. Truncated importance sampling corrects for the engine having sampled from a different distribution
(workers/loss/policy.py has the formula and its source).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from profiles.footprint import MAX_LOGITS
from workers.azr.rows import Row
from workers.loss.policy import k3, truncated_importance_weights
from workers.models import packing
from workers.models.log_probs import score
from workers.models.parallel import Single


@dataclass(frozen=True)
class Corrected:
    """rows: with the trainer's log_probs. weights: per completion token. metrics: engine-trainer mismatch."""

    rows: list[Row]
    weights: list[tuple[float, ...]]
    metrics: dict[str, float]


def correct(
    model: Any,
    rows: Sequence[Row],
    temperature: float,
    cap: float,
    *,
    micro_batch_size: int,
    row_tokens: int,
    max_logits: int = MAX_LOGITS,
    parallel: Single | None = None,
) -> Corrected:
    """Score all rows with the current weights. Call before the step's first update."""
    old = rescore(
        model,
        rows,
        temperature,
        micro_batch_size=micro_batch_size,
        row_tokens=row_tokens,
        max_logits=max_logits,
        parallel=parallel,
    )
    ours = torch.tensor([value for row in old for value in row], dtype=torch.float64)
    theirs = torch.tensor([value for row in rows for value in row.log_probs], dtype=torch.float64)
    weights = truncated_importance_weights(ours, theirs, cap)
    difference = (ours - theirs).abs()
    metrics = {
        "mismatch_mean": float(difference.mean()) if len(ours) else 0.0,
        "mismatch_max": float(difference.max()) if len(ours) else 0.0,
        "mismatch_kl": float(k3(theirs, ours).mean()) if len(ours) else 0.0,
        "mismatch_tokens": float(len(ours)),
        "tis_weight": float(weights.mean()) if len(ours) else 1.0,
        "tis_capped": float((ours - theirs > math.log(cap)).double().mean()) if len(ours) else 0.0,
    }
    each = iter(weights.tolist())
    return Corrected(
        rows=[replace(row, log_probs=values) for row, values in zip(rows, old, strict=True)],
        weights=[tuple(islice(each, len(row.completion_ids))) for row in rows],
        metrics=metrics,
    )


@torch.no_grad()
def rescore(
    model: Any,
    rows: Sequence[Row],
    temperature: float,
    *,
    micro_batch_size: int,
    row_tokens: int,
    max_logits: int = MAX_LOGITS,
    parallel: Single | None = None,
) -> list[tuple[float, ...]]:
    """log_probs of each row's completion tokens from a forward pass of `model`.

    parallel: the ranks that share the passes.
    """
    parallel = parallel or Single()
    lengths = [len(row.completion_ids) for row in rows]
    starts = [0, *accumulate(lengths)]
    found = torch.zeros(starts[-1], dtype=torch.float64)  # [tokens of all rows]
    units = packing.units_of([row.prompt_ids for row in rows], [row.completion_ids for row in rows], row_tokens)
    scores: list[Tensor] = []  # on the device, so that no pass waits for the one before it
    order: list[int] = []
    with parallel.reading():
        for batch in packing.micro_batches(parallel.mine(units), micro_batch_size, row_tokens):
            scored = score(model, packing.pack(batch).to(model.device), temperature, max_logits=max_logits)
            scores.append(scored.log_probs.double())
            order += [member for row in batch for unit in row for member in unit.members]
        if scores:
            parts = torch.split(torch.cat(scores).cpu(), [lengths[member] for member in order])
            for member, part in zip(order, parts, strict=True):
                found[starts[member] : starts[member + 1]] = part
    each = iter(parallel.group.exchange(found).tolist())
    return [tuple(islice(each, length)) for length in lengths]
