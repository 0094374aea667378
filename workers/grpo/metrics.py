"""Counts for a step of GRPO, as a flat dict of floats; profiles/metrics.py explains each. (pure)"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import fsum, sqrt
from statistics import fmean

from profiles.metrics import LENGTHS_AT, REWARDS_AT
from workers.grpo.rows import Row
from workers.grpo.uniformity import StepFacts
from workers.intervals import spread_of

Metrics = dict[str, float]


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


def deviation(values: Sequence[float]) -> float:
    middle = fsum(values) / len(values)
    return sqrt(fsum((value - middle) ** 2 for value in values) / len(values))


def groups_of(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Rows by group, in the order of their first row."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found


def collected_metrics(rows: Sequence[Row], uniform: Collection[int], rounds: int) -> Metrics:
    """Metrics of all rollouts of a step. uniform: groups whose rewards are equal."""
    groups = list(groups_of(rows).values())
    lengths = [row.num_own for row in rows]
    return {
        "reward": mean(row.reward for row in rows),
        "reward/correct": mean(row.is_correct for row in rows),
        **_parts(rows),
        "reward_std": deviation([row.reward for row in rows]),
        "group_spread": mean(deviation([row.reward for row in group]) for group in groups),
        "accuracy": mean(row.is_correct for row in rows),
        "answered": mean(row.is_answered for row in rows),
        "groups": float(len(groups)),
        "extra_rounds": float(rounds),
        "uniform_share": len(uniform) / len(groups),
        "all_right": mean(all(row.is_correct for row in group) for group in groups),
        "all_wrong": mean(not any(row.is_correct for row in group) for group in groups),
        "truncated": mean(row.finish_reason == "length" for row in rows),
        "rollouts_not_finite": float(sum(not row.is_finite for row in rows)),
        "rollouts_not_judged": float(sum(bool(row.failure) for row in rows)),
        "tokens_mean": mean(lengths),
        "tokens_min": float(min(lengths)),
        "tokens_max": float(max(lengths)),
        **spread_of(REWARDS_AT, [row.reward for row in rows]),
        **spread_of(LENGTHS_AT, lengths),
        **({"turns_mean": mean(row.turns for row in rows)} if any(row.is_own for row in rows) else {}),
        "distinct_share": mean(len({row.completion_ids for row in group}) / len(group) for group in groups),
    }


def _parts(rows: Sequence[Row]) -> Metrics:
    """The mean of each part over the rollouts that have it."""
    names = dict.fromkeys(name for row in rows for name in row.parts)
    return {f"reward/{name}": mean(row.parts[name] for row in rows if name in row.parts) for name in names}


def facts_of(metrics: Metrics) -> StepFacts:
    """The inputs of the rule about steps that teach nothing."""
    groups = int(metrics["groups"])
    return StepFacts(
        groups=groups,
        uniform=round(metrics["uniform_share"] * groups),
        accuracy=metrics["accuracy"],
        truncated_share=metrics["truncated"],
        unanswered_share=1 - metrics["answered"],
        distinct_share=metrics["distinct_share"],
    )
