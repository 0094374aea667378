"""Log-probs and entropies of rollouts under the trainer's current weights, without gradient."""

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
    """The sizes that determine memory use. Otherwise they affect only rounding."""

    rollouts: int
    """Rollouts in one forward pass."""
    row_tokens: int
    """Length of the rows that sequences are packed into."""
    head_rows: int
    """Positions that the output head reads at one time."""


class Scores(NamedTuple):
    """For each row, on the CPU: [R_i] each, of the tokens that the model drew, float32, nats."""

    log_probs: list[Tensor]
    entropies: list[Tensor]


def units_of(rows: Sequence[Row], sizes: Sizes) -> list[packing.Unit]:
    """What is read together of `rows`; members are their numbers. (pure)"""
    prompts, completions = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
    return packing.units_of(prompts, completions, sizes.row_tokens, [row.is_own for row in rows])


def batches(units: Sequence[packing.Unit], sizes: Sizes) -> list[packing.Batch]:
    """Forward passes over `units`. (pure)"""
    return packing.micro_batches(units, sizes.rollouts, sizes.row_tokens)


def packed(batch: packing.Batch) -> tuple[packing.Pack, list[int]]:
    """A forward pass, with the numbers of its rows, in the order of their tokens in it. (pure)"""
    return packing.pack(batch), [member for row in batch for unit in row for member in unit.members]


@torch.no_grad()
def score_rows(
    model: Any, rows: Sequence[Row], temperature: float, sizes: Sizes, parallel: Single | None = None
) -> Scores:
    """Score by forward passes of `model`, at the sampling temperature. parallel: shares the passes among ranks."""
    parallel = parallel or Single()
    lengths = [row.num_own for row in rows]
    found = torch.zeros(2, sum(lengths))
    log_probs, entropies = (list(torch.split(values, lengths)) for values in found)  # views
    scores: list[Tensor] = []  # [2, tokens of a pass]; on the device, so that no pass waits for the one before it
    order: list[int] = []
    with parallel.reading():
        limit = sizes.head_rows * model.config.vocab_size
        for batch in batches(parallel.mine(units_of(rows, sizes)), sizes):
            pack, members = packed(batch)
            scored = score(model, pack.to(model.device), temperature, max_logits=limit)
            scores.append(torch.stack((scored.log_probs.float(), scored.entropy.float())))
            order += members
        if scores:
            of_members = [lengths[member] for member in order]
            for into, values in zip((log_probs, entropies), torch.cat(scores, 1).cpu(), strict=True):
                for member, part in zip(order, torch.split(values, of_members), strict=True):
                    into[member].copy_(part)
    parallel.group.exchange(found)
    return Scores(log_probs, entropies)
