"""The reward of a rollout, for both trainers: a sum of named parts. Each part has its own file and uses no other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, Protocol, TypeVar

from workers.problems.problem import Problem
from workers.rollout.engine import Rollout
from workers.tasks.entry import Entry
from workers.tasks.items import Task
from workers.tasks.judge import Judged
from workers.tasks.validate_proposals import Checked
from workers.verifiers.verify import Verdict

Asked = TypeVar("Asked", covariant=True)
Found = TypeVar("Found", covariant=True)


@dataclass(frozen=True)
class Case(Generic[Asked, Found]):
    """A rollout with everything that parts of the reward may use, computed once for all of them.

    problem: what the prompt asked. text: the decoded completion. verdict: whether it is right.
    """

    problem: Asked
    text: str
    rollout: Rollout
    verdict: Found
    is_well_formed: bool
    """Whether it has the requested format, right or wrong."""
    share: float
    """The tokens that the model drew, as a fraction of the maximum completion length."""
    label: str
    """A short name of the problem, for messages."""
    earned: float = 0.0
    """What an environment gave for the episode."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """Of an episode, all messages after the prompt. Then `text` is the last reply."""

    @property
    def is_truncated(self) -> bool:
        return self.rollout.finish_reason == "length"

    @property
    def tokens(self) -> int:
        """Tokens that the model drew, with stop tokens."""
        return self.rollout.num_own


class Scored(Protocol):
    """A verdict on an answer."""

    @property
    def score(self) -> float:
        """1 for a right answer, 0 for a wrong one, between them for a program that passes only some checks."""
        ...


@dataclass(frozen=True)
class Estimate:
    """A checked proposal and its solve-rate estimate. successes: sum of the scores of `n` rollouts.

    n: 0 for an invalid task, or a known task that is not estimated again.
    """

    checked: Checked
    successes: float = 0.0
    n: int = 0


ProblemCase = Case[Problem, Verdict]
"""An answer to a problem: a rollout of GRPO."""
SolverCase = Case[Entry, Judged]
"""An answer to a task: a rollout of self-play's solver."""
ProposerCase = Case[Task, Estimate]
"""A proposal of a task of this kind. Counts as well-formed only if the task is also valid."""

AnyCase = TypeVar("AnyCase", bound=Case[Any, Any])
Seen = TypeVar("Seen", bound=Case[Any, Any], contravariant=True)


class Reward(Protocol[Seen]):
    """One part of a rollout's reward."""

    @property
    def name(self) -> str:
        """One lower-case word. The metric of a user-defined part is `reward/NAME`."""
        ...

    def __call__(self, case: Seen) -> float:
        """A finite number; 0 if the part does not apply."""
        ...


class SlowReward(Protocol):
    """A part that takes time: it is computed for ended rollouts while others still decode."""

    @property
    def name(self) -> str:
        """As of a `Reward`."""
        ...

    takes_groups: bool
    """Whether it is given all rollouts of a problem together."""

    def check(self, columns: Collection[str]) -> None:
        """Raises LonghaulError (INPUT) if it needs a column that no problem has. columns: those that some have."""
        ...

    def submit(self, cases: Sequence[ProblemCase]) -> Sequence[Future[Mapping[str, float]]]:
        """Begin to judge; returns at once, a future for each case.

        A future holds the part's value under its name, with further named values that do not count; or it raises
        LonghaulError, if the part could not be computed.
        """
        ...


@dataclass(frozen=True)
class Score:
    """parts: name -> value, without its weight. total: the rollout's reward, their weighted sum (or a coin toss under
    `random_rewards`)."""

    total: float
    parts: Mapping[str, float]


def score(case: AnyCase, rewards: Sequence[Reward[AnyCase]], weights: Sequence[float] = ()) -> Score:
    """Evaluate all parts in order and sum them. weights: of each part; empty: 1 each. Raises ValueError if a part is
    not finite or two share a name."""
    parts: dict[str, float] = {}
    total = 0.0
    for reward, weight in zip(rewards, weights or [1.0] * len(rewards), strict=True):
        value = reward(case)
        if not isfinite(value):
            raise ValueError(f"reward/{reward.name} is {value} for the {case.label}")
        if reward.name in parts:
            raise ValueError(f"two parts of the reward have the name {reward.name!r}")
        parts[reward.name] = value
        total += weight * value
    return Score(total, parts)
