"""A rollout to judge, in one line."""

from __future__ import annotations

from typing import Any

from workers.problems.problem import Problem
from workers.rewards.registry import part_of
from workers.rewards.reward import ProblemCase
from workers.rollout.engine import Rollout
from workers.verifiers.verify import Verdict


def case_of(
    text: str,
    gold: str = "7",
    *,
    columns: dict[str, Any] | None = None,
    tokens: int = 8,
    longest: int = 16,
    right: bool = True,
    formed: bool = True,
    cut: bool = False,
) -> ProblemCase:
    """tokens: of the completion, whose maximum is `longest`."""
    rollout = Rollout((1,), tuple(range(tokens)), (-1.0,) * tokens, "length" if cut else "stop")
    problem = Problem(0, 3, "?", gold, columns=columns or {})
    return ProblemCase(problem, text, rollout, Verdict(right, None, ""), formed, tokens / longest, "problem 0")


def earned(name: str, options: dict[str, Any], text: str, gold: str = "7", **facts: Any) -> float:
    """What a built-in part gives."""
    return part_of(name, options)(case_of(text, gold, **facts))
