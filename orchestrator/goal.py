"""Whether a held-out score has reached the goal in `run.until`. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from profiles.goal import Goal
from state.history import ValidationFacts


def score_of(goal: Goal, validations: Sequence[ValidationFacts]) -> float | None:
    """The goal's score, averaged over the suites that report it; None if none does."""
    found = [
        float(validation.metrics[goal.task][goal.field])
        for validation in validations
        if goal.suite in ("", validation.suite) and goal.field in validation.metrics.get(goal.task, {})
    ]
    return sum(found) / len(found) if found else None


def names_of(validations: Sequence[ValidationFacts]) -> list[str]:
    """The accuracies that a goal can name, in its syntax."""
    return sorted(
        f"{validation.suite}/{task}.{field}"
        for validation in validations
        for task, fields in validation.metrics.items()
        for field in fields
        if field.endswith("accuracy")
    )
