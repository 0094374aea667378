"""Fixes everything about an update before its first gradient: old and reference log-probs, weights, masks, divisors.

Computed once per step over whole minibatches, so neither the size of micro-batches nor a retry after running out of
memory can change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import Any

import torch
from torch import Tensor

from profiles.passes import can_be_one_pass
from profiles.schema import Profile
from workers.grpo.entropy import EntropyMask
from workers.grpo.low_entropy import kl_weights
from workers.grpo.metrics import Metrics, groups_of
from workers.grpo.old_source import old_source_of
from workers.grpo.rows import Row
from workers.grpo.scoring import Scores, Sizes, score_rows
from workers.grpo.token_weights import weights_of
from workers.loss.policy import k3, weights_of_tokens
from workers.models.adapters import disabled
from workers.models.parallel import Single
from workers.rollout.select import TIS_CAP

SEQUENCE_CAP = 3.0
"""Default cap for `tis_mode = "sequence_mask"`, as in TRL: a product of many weights spreads more widely."""


@dataclass(frozen=True)
class Minibatch:
    """rows: indices into `Prepared.rows`. Per row, [R_i] each: keep, bool, None for all tokens; weights, of its tokens;
    kl_weights, on top of `kl_coef`, None if there are none. is_finite: False if entropies for a mask were not finite;
    the minibatch is then dropped, like one whose loss is not finite."""

    rows: tuple[int, ...]
    weights: tuple[float, ...]
    keep: tuple[Tensor, ...] | None
    kl_weights: tuple[Tensor, ...] | None = None
    is_finite: bool = True


@dataclass(frozen=True)
class Prepared:
    """The rows to train on. old, tis, ref: for each row [R_i], of the tokens that the model drew, on the CPU; None:
    unused."""

    rows: list[Row]
    advantages: list[float]
    old: list[Tensor]
    tis: list[Tensor] | None
    ref: list[Tensor] | None
    minibatches: list[Minibatch]
    metrics: Metrics = field(default_factory=dict)
    tis_cap: float = 0.0
    """Above 0: `old` comes from the engine, and the update itself computes importance weights under this cap."""


def prepare(
    model: Any,
    profile: Profile,
    rows: Sequence[Row],
    advantages: Sequence[float],
    left_out: Sequence[Row],
    mask: EntropyMask,
    sizes: Sizes,
    parallel: Single | None = None,
    source: str = "",
) -> Prepared:
    """rows: those to train on; left_out: those that count only in the denominator, if at all. Updates a running `mask`,
    as its last act.

    source: of the old log-probs, to override the profile's.
    """
    source = source or old_source_of(profile)
    if source == "trainer" and is_one_pass(profile, rows):
        source = "update"
    grpo, temperature = profile.grpo, profile.sampling.temperature
    is_masked = grpo.entropy_mask != "off"
    rollout = [torch.tensor(row.log_probs) for row in rows]
    by_row = [torch.tensor(row.entropies) for row in rows]
    scores: Scores | None = None
    if source == "trainer" or (is_masked and not have_entropies(rows)):
        scores = score_rows(model, rows, temperature, sizes, parallel)
    old, tis = rollout, None
    metrics: Metrics = {}
    if source == "trainer":
        assert scores is not None
        old = scores.log_probs
        fresh = [row.num_fresh for row in rows]
        tis, metrics = corrected(old, rollout, weight_cap(profile), grpo.variants.tis_mode, fresh)
    entropies = by_row if have_entropies(rows) else scores.entropies if scores else []
    ref = None
    if grpo.kl_coef or grpo.variants.low_entropy_kl:
        with disabled(model):
            ref = score_rows(model, rows, temperature, sizes, parallel).log_probs
    minibatches, masked = plan(profile, rows, left_out, entropies if is_masked else [], mask)
    if grpo.variants.low_entropy_kl:
        minibatches = [
            replace(one, kl_weights=_kl_weights(profile, one, advantages, old)) if one.is_finite else one
            for one in minibatches
        ]
    cap = weight_cap(profile) if source == "update" else 0.0
    return Prepared(list(rows), list(advantages), old, tis, ref, minibatches, metrics | masked, cap)


def is_one_pass(profile: Profile, rows: Sequence[Row]) -> bool:
    """Whether the update's own forward pass can supply the trainer's old log-probs: it is the step's only update, and
    nothing else needs all tokens before it. (pure)"""
    is_alone = len(shares(rows, profile.optimizer.updates_per_step)) == 1
    is_known = profile.grpo.entropy_mask == "off" or have_entropies(rows)
    return can_be_one_pass(profile) and is_alone and is_known


def have_entropies(rows: Sequence[Row]) -> bool:
    """Whether the engine reported the entropy of each token."""
    return all(len(row.entropies) == row.num_own for row in rows)


def weight_cap(profile: Profile) -> float:
    """The cap of importance weights if the old log-probs are the trainer's own; 0: no weights. (pure)"""
    if profile.optimizer.tis_cap >= 0:
        return profile.optimizer.tis_cap
    return SEQUENCE_CAP if profile.grpo.variants.tis_mode == "sequence_mask" else TIS_CAP


def _kl_weights(
    profile: Profile, minibatch: Minibatch, advantages: Sequence[float], old: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    assert minibatch.keep is not None  # a rule of the profile
    variants, lengths = profile.grpo.variants, [len(one) for one in minibatch.keep]
    found = kl_weights(
        torch.cat(minibatch.keep),
        torch.cat([old[i] for i in minibatch.rows]),
        torch.tensor([advantages[i] for i in minibatch.rows]).repeat_interleave(torch.tensor(lengths)),
        low=variants.low_entropy_kl,
        high=variants.low_entropy_cov_kl,
        share=variants.low_entropy_cov_share,
    )
    return torch.split(found, lengths)


def importance_weights(old: Sequence[Tensor], rollout: Sequence[Tensor], cap: float, mode: str) -> list[Tensor]:
    """Importance weights of each row's tokens, [R_i] each, without gradient, by `tis_mode`. (pure)

    token_truncate: min(r, cap); token_mask: r where r <= cap, else 0; sequence_mask: the mask applied to the product of
    all r of a rollout, for each of its tokens.
    """
    found = []
    for ours, theirs in zip(old, rollout, strict=True):
        difference = (ours.double() - theirs.double()).detach()
        if mode == "sequence_mask":
            difference = difference.sum().expand(len(difference))
        found.append(weights_of_tokens(difference, cap, mode).float())
    return found


def corrected(
    old: Sequence[Tensor],
    rollout: Sequence[Tensor],
    cap: float,
    mode: str = "token_truncate",
    fresh: Sequence[int] | None = None,
) -> tuple[list[Tensor] | None, Metrics]:
    """Importance weights of each row's tokens (none if the cap is 0), and how far off the engine was. (pure)

    fresh: how many of each row's last tokens the present weights drew; only these tell how far off the engine is. None:
    all.
    """
    counts = [len(one) for one in old] if fresh is None else fresh
    ours, theirs = (
        torch.cat([one[len(one) - count :] for one, count in zip(each, counts, strict=True)]).double()
        for each in (old, rollout)
    )
    difference = (ours - theirs).abs()
    metrics = {
        "mismatch_mean": float(difference.sum()) / max(len(ours), 1),
        "mismatch_max": float(difference.max()) if len(ours) else 0.0,
        "mismatch_kl": float(k3(theirs, ours).sum()) / max(len(ours), 1),
        "mismatch_tokens": float(len(ours)),
    }
    if not cap:
        return None, metrics
    each = importance_weights(old, rollout, cap, mode)
    weights = torch.cat(each)
    metrics["tis_weight"] = float(weights.mean())
    metrics["tis_capped"] = float(((weights >= cap) | (weights == 0)).double().mean())
    return each, metrics


def plan(
    profile: Profile, rows: Sequence[Row], left_out: Sequence[Row], entropies: Sequence[Tensor], mask: EntropyMask
) -> tuple[list[Minibatch], Metrics]:
    """Disjoint minibatches of whole groups, each with its mask and its divisors. entropies: empty without a mask."""
    grpo, longest = profile.grpo, profile.sampling.max_completion_tokens
    parts = shares(rows, profile.optimizer.updates_per_step)
    rest = shares(left_out, len(parts)) if grpo.variants.denominator == "all" else []
    found: list[Minibatch] = []
    thresholds: list[float] = []
    kept = total = 0
    for members, others in zip_longest(parts, rest, fillvalue=()):  # `rest` may be shorter, or empty
        lengths = [rows[i].num_own for i in members]
        keep: tuple[Tensor, ...] | None = None
        selected = lengths
        is_finite = all(bool(torch.isfinite(entropies[i]).all()) for i in members) if entropies else True
        if entropies and is_finite:
            chosen = mask.select(torch.cat([entropies[i] for i in members]), lengths)
            keep = tuple(torch.split(chosen.mask, lengths))
            selected = [int(one.sum()) for one in keep]
            if chosen.threshold is not None:
                thresholds.append(chosen.threshold)
        beside = [left_out[i].num_own for i in others]
        # If a rollout is divided by its number of kept tokens, one that keeps none does not count.
        has_say = [grpo.variants.mask_norm == "all" or number > 0 for number in selected]
        weights = [0.0] * len(members)
        if any(has_say):
            counts = [*lengths, *beside], [*selected, *beside]
            weights = weights_of(grpo, *counts, has_say + [False] * len(others), longest)[: len(members)]
        found.append(Minibatch(tuple(members), tuple(weights), keep, is_finite=is_finite))
        kept, total = kept + sum(selected), total + sum(lengths)
    metrics = {"kept_tokens": kept / total}
    if entropies:
        # Under a mask the head reads only the kept tokens, so the update cannot compute the mean over all.
        metrics["entropy"] = float(torch.cat(list(entropies)).double().mean())
    if thresholds:
        metrics["entropy_threshold"] = sum(thresholds) / len(thresholds)
    return found, metrics


def shares(rows: Sequence[Row], count: int) -> list[list[int]]:
    """Indices of `rows` in `count` parts of whole groups; fewer parts if there are fewer groups. (pure)"""
    places: dict[int, list[int]] = {group: [] for group in groups_of(rows)}
    for place, row in enumerate(rows):
        places[row.group].append(place)
    groups = list(places.values())
    parts = min(count, len(groups)) if rows else count
    bounds = [len(groups) * part // max(parts, 1) for part in range(parts + 1)]
    return [[place for group in groups[low:high] for place in group] for low, high in pairwise(bounds)]
