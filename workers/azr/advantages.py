"""Turns rewards into advantages by TRR++: each (task, role) cell is normalised with its own statistics. (pure)

Cells are never pooled, so a task with low rewards overall is not penalised against the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Literal

from workers.tasks.items import Role, Task

EPS = 1e-8
DEGENERATE_STD = 1e-6


@dataclass(frozen=True)
class Advantages:
    values: list[float]
    degenerate: int
    """Number of cells whose rewards are all equal. All advantages in such a cell are 0."""


def cell_advantages(
    cells: Sequence[Hashable],
    rewards: Sequence[float],
    lengths: Sequence[int] | None = None,
    norm: Literal["sample", "token"] = "sample",
) -> Advantages:
    """(reward - mean) / standard deviation within each cell.

    cells, rewards, lengths: [N]. `lengths` is in tokens and used by norm "token" only. "sample" is Eq. 8 of arXiv
    2505.03335 with ddof 1. "token" weights each sample by its length, as the paper's code does. Raises ValueError for
    "token" without lengths.
    """
    values = [0.0] * len(rewards)
    degenerate = 0
    for rows in _rows_by(cells).values():
        inside = [rewards[row] for row in rows]
        if norm == "token":
            if lengths is None:
                raise ValueError("token-level advantages need the lengths")
            scaled = _whiten_tokens(inside, [lengths[row] for row in rows])
        else:
            scaled = _whiten(inside)
        degenerate += not any(scaled)
        for row, value in zip(rows, scaled, strict=True):
            values[row] = value
    return Advantages(values, degenerate)


def group_advantages(cells: Sequence[Hashable], groups: Sequence[Hashable], rewards: Sequence[float]) -> Advantages:
    """Like `cell_advantages`, but the baseline of a row is the mean reward of its group (the rollouts of one prompt).

    cells, groups, rewards: [N]. A group of one row uses its cell's mean as the baseline. The standard deviation is
    computed over the whole cell, around these baselines: a group's own deviation would exaggerate a group with one
    lucky answer in eight.
    """
    values = [0.0] * len(rewards)
    degenerate = 0
    for rows in _rows_by(cells).values():
        cell_mean = fsum(rewards[row] for row in rows) / len(rows)
        centred: dict[int, float] = {}
        for members in _rows_by([groups[row] for row in rows]).values():
            inside = [rows[member] for member in members]
            mean = fsum(rewards[row] for row in inside) / len(inside) if len(inside) > 1 else cell_mean
            centred |= {row: rewards[row] - mean for row in inside}
        std = sqrt(fsum(value * value for value in centred.values()) / max(len(rows) - 1, 1))
        if len(rows) < 2 or std < DEGENERATE_STD:
            degenerate += 1
            continue
        for row, value in centred.items():
            values[row] = value / (std + EPS)
    return Advantages(values, degenerate)


def role_weights(cells: Sequence[tuple[Task, Role]], proposer_share: float) -> list[float]:
    """Factors for the advantages that give proposals the share `proposer_share` of their task's total weight.

    cells: [N]. Returns [N]. The weights of a task sum to its number of rows. All weights are 1 if the share is 0, and
    for a task whose rows have only one role. A share of 0.5 acts like equal numbers of proposals and answers (arXiv
    2505.03335: 64 each).
    """
    rows = Counter(cells)
    share = {"propose": proposer_share, "solve": 1 - proposer_share}

    def weight(task: Task, role: Role) -> float:
        mine, other = rows[task, role], rows[task, "solve" if role == "propose" else "propose"]
        return share[role] * (mine + other) / mine if proposer_share and other else 1.0

    return [weight(task, role) for task, role in cells]


def _rows_by(keys: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    rows: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return rows


def _whiten(rewards: Sequence[float]) -> list[float]:
    n = len(rewards)
    mean = fsum(rewards) / n
    std = sqrt(fsum((reward - mean) ** 2 for reward in rewards) / max(n - 1, 1))
    if n < 2 or std < DEGENERATE_STD:
        return [0.0] * n
    return [(reward - mean) / (std + EPS) for reward in rewards]


def _whiten_tokens(rewards: Sequence[float], lengths: Sequence[int]) -> list[float]:
    tokens = sum(lengths)
    mean = fsum(length * reward for reward, length in zip(rewards, lengths, strict=True)) / tokens
    squares = fsum(length * (reward - mean) ** 2 for reward, length in zip(rewards, lengths, strict=True))
    variance = squares / max(tokens - 1, 1)
    if len(rewards) < 2 or sqrt(variance) < DEGENERATE_STD:
        return [0.0] * len(rewards)
    return [(reward - mean) / sqrt(variance + EPS) for reward in rewards]
