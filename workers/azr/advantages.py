"""Rewards to advantages: TRR++, where each (task, role) is a cell with statistics of its own. (pure)

Cells are never pooled: a task whose rewards are low as a whole is not thereby a bad one.
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
    """Cells without any difference between their rewards: all their advantages are 0."""


def cell_advantages(
    cells: Sequence[Hashable],
    rewards: Sequence[float],
    lengths: Sequence[int] | None = None,
    norm: Literal["sample", "token"] = "sample",
) -> Advantages:
    """(reward - mean) / deviation within each cell. All arguments: [N]; `lengths` in tokens, for norm "token" only.

    `sample` is Eq. 8 of arXiv 2505.03335, ddof 1. `token` weighs each sample by its length, as the paper's code does.
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
    """Like `cell_advantages`, but the baseline of a row is the mean of its group: the rollouts of one prompt.

    cells, groups, rewards: [N]. A group of one row has its cell's mean as the baseline. The deviation is the cell's,
    around these baselines: divided by its own deviation, a group with one lucky answer in eight would shout.
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
    """What the advantages of each row are multiplied by, so that proposals weigh `proposer_share` of their task's rows.

    cells: [N]. Returns [N]; the weights of a task add up to its number of rows. All are 1 for share 0 and for a task
    with rows of one role alone. Half is as if a task had as many proposals as answers (arXiv 2505.03335, 64 of each).
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
