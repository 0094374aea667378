"""`run.until`: a held-out score that finishes the run, as in `mean>=0.9`. (pure)"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from profiles.task_kinds import INDUCTION

FORM = "[SUITE/]TASK[.FIELD]>=NUMBER, as in mean>=0.9 or pocket/" + INDUCTION + ".sampled_accuracy>0.8"
REWARDS = ("mean_reward", "sampled_reward")
"""Metrics of profiles/metrics.py (slow to import), reported where the run's own reward judges."""
FIELDS_OF_MEAN = ("accuracy", "sampled_accuracy", "low", "high", "n", "correct", *REWARDS)
FIELDS = (*FIELDS_OF_MEAN, "worked_share", "mean_tokens", "malformed")
"""Metrics of each task."""
_NO_SHARES = ("n", "correct", "mean_tokens", *REWARDS)
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_GOAL = re.compile(r"\s*(?:([\w.:-]+)/)?(\w+)(?:\.(\w+))?\s*(>=|<=|>|<)\s*([0-9]*\.?[0-9]+)\s*", re.ASCII)


class Goal(Struct, frozen=True):
    """suite: empty means the average over all suites that have the task."""

    suite: str
    task: str
    field: str
    sign: str
    value: float

    def __str__(self) -> str:
        suite = f"{self.suite}/" if self.suite else ""
        return f"{suite}{self.task}.{self.field} {self.sign} {self.value:g}"

    def is_met_by(self, score: float) -> bool:
        return _OPERATORS[self.sign](score, self.value)


def parse_goal(text: str) -> Goal:
    """Raises ValueError if the text is not in FORM."""
    found = _GOAL.fullmatch(text)
    if found is None:
        raise ValueError(f"must have the form {FORM}")
    suite, task, field, sign, value = found.groups()
    return Goal(suite or "", task, field or "accuracy", sign, float(value))


def why_never(goal: Goal, suites: Mapping[str, Sequence[str]]) -> str:
    """Why no validation can reach the goal; empty if one can. suites: name -> the tasks it scores."""
    if goal.suite and goal.suite not in suites:
        return f"names the suite {goal.suite}, but validation.suites has {', '.join(suites)}"
    asked = [goal.suite] if goal.suite else list(suites)
    known = [*dict.fromkeys(task for suite in asked for task in suites[suite]), "mean"]
    if goal.task not in known:
        return f"names the task {goal.task}, which {' and '.join(asked)} does not score; known: {', '.join(known)}"
    fields = FIELDS_OF_MEAN if goal.task == "mean" else FIELDS
    if goal.field not in fields:
        return f"names {goal.task}.{goal.field}, which no validation reports; known: {', '.join(fields)}"
    if goal.field not in _NO_SHARES and not (0 <= goal.value <= 1 and (goal.is_met_by(0.0) or goal.is_met_by(1.0))):
        return f"requires {goal.field} {goal.sign} {goal.value:g}, but {goal.field} is between 0 and 1"
    return ""
