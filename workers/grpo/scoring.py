"""What the trainer's own modules say of rollouts with the weights as they are: log-probs and entropies, no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workers.grpo.rows import Row
from workers.models import packing
from workers.models.log_probs import score
from workers.models.parallel import Single


class Sizes(NamedTuple):
    """What memory grows with, and nothing else depends on beyond rounding."""

    rollouts: int
    """Of one forward pass."""
    row_tokens: int
    """Tokens of a row that sequences are packed into."""
    head_rows: int
    """Places that the output head reads at one time."""


class Scores(NamedTuple):
    """Of each row, on the CPU: [R_i] each, float32, nats."""

    log_probs: list[Tensor]
    entropies: list[Tensor]


def packs(rows: Sequence[Row], sizes: Sizes) -> list[tuple[packing.Pack, list[int]]]:
    """Forward passes over `rows`: each with the numbers of its rows, in the order of their tokens in it. (pure)"""
    units = packing.units_of([row.prompt_ids for row in rows], [row.completion_ids for row in rows], sizes.row_tokens)
    found = []
    for batch in packing.micro_batches(units, sizes.rollouts, sizes.row_tokens):
        found.append((packing.pack(batch), [member for row in batch for unit in row for member in unit.members]))
    return found


@torch.no_grad()
def score_rows(
    model: Any, rows: Sequence[Row], temperature: float, sizes: Sizes, parallel: Single | None = None
) -> Scores:
    """By a forward pass of `model`, at the sampling temperature. parallel: who shares the passes."""
    parallel = parallel or Single()
    lengths = [len(row.completion_ids) for row in rows]
    found = torch.zeros(2, sum(lengths))
    log_probs, entropies = (list(torch.split(values, lengths)) for values in found)  # views
    with parallel.reading():
        limit = sizes.head_rows * model.config.vocab_size
        for pack, members in parallel.mine(packs(rows, sizes)):
            scored = score(model, pack.to(model.device), temperature, max_logits=limit)
            of_members = [lengths[member] for member in members]
            for into, values in ((log_probs, scored.log_probs), (entropies, scored.entropy)):
                for member, part in zip(members, torch.split(values.float().cpu(), of_members), strict=True):
                    into[member].copy_(part)
    parallel.group.exchange(found)
    return Scores(log_probs, entropies)
