"""What a rollout earns: named parts, added up. A part is a file of its own and says nothing about the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from workers.problems.reader import Problem
from workers.rollout.engine import Rollout
from workers.verifiers.verify import Verdict


@dataclass(frozen=True)
class Case:
    """A rollout that is to be judged. text: its completion as a person reads it. verdict: who is right, found once."""

    problem: Problem
    text: str
    rollout: Rollout
    verdict: Verdict
    share: float
    """Its tokens as a share of the longest completion that is allowed."""

    @property
    def is_truncated(self) -> bool:
        return self.rollout.finish_reason == "length"


class Reward(Protocol):
    """One part of what a rollout earns."""

    @property
    def name(self) -> str:
        """One lower-case word. Its metric is `reward/NAME`."""
        ...

    def __call__(self, case: Case) -> float:
        """A finite number, 0 where it has nothing to say."""
        ...


@dataclass(frozen=True)
class Score:
    """parts: name -> number. total: what the rollout earns, their sum."""

    total: float
    parts: Mapping[str, float]


def score(case: Case, rewards: Sequence[Reward]) -> Score:
    """The sum of all parts, in order. Raises ValueError for a part that is not finite, or a name that occurs twice."""
    parts: dict[str, float] = {}
    total = 0.0
    for reward in rewards:
        value = reward(case)
        if not isfinite(value):
            raise ValueError(f"reward/{reward.name} is {value} for the problem {case.problem.number}")
        if reward.name in parts:
            raise ValueError(f"two parts of the reward have the name {reward.name!r}")
        parts[reward.name] = value
        total += value
    return Score(total, parts)
