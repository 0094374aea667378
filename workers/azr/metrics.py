"""Metrics of a self-play step as a flat dict of floats. profiles/metrics.py documents each one. (pure)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from profiles.metrics import LENGTHS_AT, REWARDS_AT
from workers.azr.proposing import num_statements
from workers.azr.rows import Row
from workers.intervals import spread_of
from workers.tasks.items import ROLES, Task
from workers.tasks.kinds.registry import kind_of
from workers.tasks.validate_proposals import REPEAT

if TYPE_CHECKING:
    from workers.azr.selfplay import Solved

Metrics = dict[str, float]


def mean(values: Iterable[float]) -> float:
    """The mean, or 0 if there are no values: charts need a number, and a separate count shows that there were none."""
    found = list(values)
    return fmean(found) if found else 0.0


def collected_metrics(
    rows: Sequence[Row], reasons: Counter[str], solved: Sequence[Solved], tasks: Sequence[Task]
) -> Metrics:
    fair = [row for row in rows if row.reward is not None]
    proposals = [row for row in rows if row.role == "propose"]
    new = [one for one in solved if one.wanted.is_new]
    metrics: Metrics = {
        "reward": mean(row.reward or 0.0 for row in fair),
        "proposals": float(len(proposals)),
        "proposals_dropped": float(sum(row.reward is None for row in proposals)),
        "rows_dropped": float(len(rows) - len(fair)),
        "new_examples": float(len(new)),
        "learnable": float(sum(map(is_learnable, new))),
        "truncated": mean(row.finish_reason == "length" for row in rows),
        "tokens_mean": mean(len(row.completion_ids) for row in rows),
        "statements": mean(num_statements(one.wanted.entry.program) for one in new if _wrote_program(one)),
        "distinct_share": mean(len(set(one.texts)) / len(one.texts) for one in new),
        "identical_share": mean(len(set(one.texts)) == 1 for one in new),
        "distinct_programs": float(len({one.wanted.entry.program_key for one in new})),
        "accept_rate": len(new) / len(proposals) if proposals else 0.0,
        "dup_rate": reasons[REPEAT] / len(proposals) if proposals else 0.0,
        **spread_of(REWARDS_AT, [row.reward for row in fair if row.role == "solve" and row.reward is not None]),
        **spread_of(LENGTHS_AT, [len(row.completion_ids) for row in fair if row.role == "solve"]),
    }
    for name in dict.fromkeys(name for row in rows for name in row.own_rewards):
        metrics[f"reward/{name}"] = mean(row.own_rewards[name] for row in rows if name in row.own_rewards)
    metrics |= {f"invalid/{reason}": float(count) for reason, count in sorted(reasons.items())}
    for task in tasks:
        metrics |= _task_metrics(task, rows, new)
    return metrics


def _task_metrics(task: Task, rows: Sequence[Row], new: Sequence[Solved]) -> Metrics:
    metrics: Metrics = {}
    for role in ROLES:
        cell = [row for row in rows if row.task == task and row.role == role]
        if not cell:
            continue
        metrics |= _cell_metrics(f"{role}_{task}", cell)
        length = f"tokens_mean/{task}" if role == "solve" else f"proposal_tokens/{task}"
        metrics[length] = mean(len(row.completion_ids) for row in cell)
        if role == "propose":
            metrics[f"accept_rate/{task}"] = mean(row.is_correct for row in cell)
            metrics[f"dup_rate/{task}"] = mean(row.is_well_formed and not row.is_correct for row in cell)
        else:
            metrics[f"accuracy/{task}"] = mean(row.is_correct for row in cell)
            metrics[f"worked/{task}"] = mean(row.is_worked for row in cell)
    of_task = [one for one in new if one.wanted.entry.task == task]
    metrics[f"new_examples/{task}"] = float(len(of_task))
    metrics[f"learnable_share/{task}"] = mean(map(is_learnable, of_task))
    metrics[f"solve_rate/{task}"] = mean(one.successes / len(one.judged) for one in of_task if one.judged)
    return metrics


def _cell_metrics(name: str, cell: Sequence[Row]) -> Metrics:
    """Metrics that proposals and answers share."""
    rewards = [row.reward for row in cell if row.reward is not None] or [0.0]
    return {
        f"reward/{name}": mean(rewards),
        f"reward_min/{name}": min(rewards),
        f"reward_max/{name}": max(rewards),
        f"malformed/{name}": mean(not row.is_well_formed for row in cell),
        f"truncated/{name}": mean(row.finish_reason == "length" for row in cell),
        f"tokens_max/{name}": float(max(len(row.completion_ids) for row in cell)),
    }


def advantage_metrics(rows: Sequence[Row], advantages: Sequence[float]) -> Metrics:
    """The standard deviation of each cell's advantages."""
    cells: dict[str, list[float]] = {}
    for row, value in zip(rows, advantages, strict=True):
        cells.setdefault(f"advantage_std/{row.role}_{row.task}", []).append(value)
    return {name: stdev(values) if len(values) > 1 else 0.0 for name, values in cells.items()}


def push_metrics(rows: Sequence[Row], pushes: Sequence[float]) -> Metrics:
    """The proposer's share of the gradient weight, which is the sum of |advantage| over tokens."""
    sizes = [abs(push) * len(row.completion_ids) for row, push in zip(rows, pushes, strict=True)]
    proposer = sum(size for row, size in zip(rows, sizes, strict=True) if row.role == "propose")
    return {"proposer_push": proposer / sum(sizes) if any(sizes) else 0.0}


def _wrote_program(solved: Solved) -> bool:
    return kind_of(solved.wanted.entry.task).writes_program


def is_learnable(solved: Solved) -> bool:
    return 0 < solved.successes < len(solved.judged)
