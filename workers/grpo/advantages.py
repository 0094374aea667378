"""Turns rewards into advantages per group, and decides which groups teach something and which to redraw. (pure)

A group is the rollouts of one problem. No value function: a rollout is measured against the others of its group.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from typing import Literal

from profiles.schema import Grpo

SAME = 1e-6
"""A group's rewards that differ by less count as equal: the float mean of equal numbers may be off by a bit."""
EPS = 1e-4
"""Added to the deviation under `group_std_eps`, as in TRL."""

Kind = Literal["group_std", "group_std_eps", "mean_only", "batch_std", "rloo"]
Uniform = Literal["skip", "keep", "baseline"]


@dataclass(frozen=True)
class Rule:
    """How rewards become advantages. std_ddof: 0 is the population's deviation; 1 reproduces TRL."""

    kind: Kind = "group_std"
    min_std: float = 0.1
    uniform: Uniform = "skip"
    std_ddof: Literal[0, 1] = 0


@dataclass(frozen=True)
class Advantages:
    """values: [N]. kept: [N], False for rollouts dropped before any forward pass. uniform: keys of uniform groups."""

    values: tuple[float, ...]
    kept: tuple[bool, ...]
    uniform: tuple[Hashable, ...]


def rule_of(grpo: Grpo) -> Rule:
    return Rule(grpo.advantage, grpo.min_std, grpo.uniform, grpo.variants.std_ddof)


def group_advantages(
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    rule: Rule,
    masked: Sequence[bool] | None = None,
    beside: Sequence[float] = (),
) -> Advantages:
    """Reward minus the mean of its group, divided by a deviation or not. All arguments: [N]; rows may be in any order.

    masked: rollouts that get no gradient (truncated) but whose reward counts; a group of only such rollouts is dropped.
    beside: rewards of the step's other rollouts, which count for the deviation of `batch_std`. Raises ValueError for a
    reward that is not finite, and for a group of one, which has nothing to compare with. Sources: DeepSeekMath, arXiv
    2402.03300, 4.1.2 (group_std); Dr. GRPO, arXiv 2503.20783 (mean_only); RLOO, arXiv 2402.14740 (rloo). The rule
    `baseline` subtracts a constant without comparison, for parity with systems that do so.
    """
    rows_by: dict[Hashable, list[int]] = {}
    for row, key in enumerate(groups):
        rows_by.setdefault(key, []).append(row)
    _check(rewards, rows_by)
    values, kept = [0.0] * len(rewards), [not (masked and masked[row]) for row in range(len(rewards))]
    divisor = max(_batch_deviation([*rewards, *beside], rule.std_ddof), rule.min_std)
    uniform = []
    for key, rows in rows_by.items():
        inside = [rewards[row] for row in rows]
        mean = fsum(inside) / len(inside)
        if is_uniform(inside):
            uniform.append(key)
            scaled = [(mean - 0.5) * 0.5 if rule.uniform == "baseline" else 0.0] * len(inside)
        else:
            scaled = _scaled([reward - mean for reward in inside], rule, divisor)
        for row, value in zip(rows, scaled, strict=True):
            values[row] = value
            kept[row] &= not (rule.uniform == "skip" and is_uniform(inside))
    return Advantages(tuple(values), tuple(kept), tuple(uniform))


def is_uniform(rewards: Sequence[float]) -> bool:
    """Whether all rewards of a group are equal, so that none of its rollouts stands out."""
    return max(rewards) - min(rewards) < SAME


def _scaled(centred: list[float], rule: Rule, batch_divisor: float) -> list[float]:
    n = len(centred)
    std = sqrt(fsum(value * value for value in centred) / (n - rule.std_ddof))
    match rule.kind:
        case "group_std":
            divisor = max(std, rule.min_std)
        case "group_std_eps":
            divisor = std + EPS
        case "mean_only":
            divisor = 1.0
        case "batch_std":
            divisor = batch_divisor
        case "rloo":
            divisor = (n - 1) / n
    return [value / divisor for value in centred]


def _batch_deviation(rewards: Sequence[float], ddof: int) -> float:
    """Deviation of all rewards of the batch around their own mean, including uniform groups."""
    mean = fsum(rewards) / len(rewards)
    return sqrt(fsum((reward - mean) ** 2 for reward in rewards) / max(len(rewards) - ddof, 1))


def _check(rewards: Sequence[float], rows_by: dict[Hashable, list[int]]) -> None:
    wrong = [row for row, reward in enumerate(rewards) if not isfinite(reward)]
    if wrong:
        raise ValueError(f"reward {rewards[wrong[0]]} of rollout {wrong[0]} is not finite")
    if not rewards or len(rewards) != sum(map(len, rows_by.values())):
        raise ValueError(f"{len(rewards)} rewards for {sum(map(len, rows_by.values()))} rollouts")
    alone = [key for key, rows in rows_by.items() if len(rows) < 2]
    if alone:
        raise ValueError(f"group {alone[0]!r} has one rollout; advantages compare rollouts of one problem")


@dataclass(frozen=True)
class Refill:
    """What to do with the groups drawn so far. train: indices of groups to train on, at most as many as wanted. draw:
    how many further problems to ask now; 0: go on with `train`. If `train` is then empty, the step makes no update."""

    train: tuple[int, ...]
    draw: int


def refill(is_group_uniform: Sequence[bool], grpo: Grpo, rounds: int) -> Refill:
    """Which groups to train on, and whether to draw others in place of uniform ones (DAPO, arXiv 2503.14476, 3.2).

    is_group_uniform: [groups drawn so far, in order]; rounds: extra rounds already done. Surplus groups at the end stay
    unused, so that training depends only on the order of the problems.
    """
    teaching = [place for place, uniform in enumerate(is_group_uniform) if not uniform]
    chosen = teaching if grpo.dynamic_sampling or grpo.uniform == "skip" else list(range(len(is_group_uniform)))
    short = grpo.groups_per_step - len(teaching)
    if grpo.dynamic_sampling and short > 0 and rounds < grpo.max_extra_rounds:
        return Refill((), short)
    return Refill(tuple(chosen[: grpo.groups_per_step]), 0)
