"""`run.until`: a held-out score at which the run is finished, as in `mean>=0.9`. (pure)"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from msgspec import Struct

FORM = "[SUITE/]TASK[.FIELD]>=NUMBER, as in mean>=0.9 or pocket/ind.sampled_accuracy>0.8"
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_GOAL = re.compile(r"\s*(?:([\w-]+)/)?(\w+)(?:\.(\w+))?\s*(>=|<=|>|<)\s*([0-9]*\.?[0-9]+)\s*", re.ASCII)


class Goal(Struct, frozen=True):
    """suite: empty for all that have the task, whose mean counts."""

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
    """Raises ValueError where the text has another form."""
    found = _GOAL.fullmatch(text)
    if found is None:
        raise ValueError(f"must have the form {FORM}")
    suite, task, field, sign, value = found.groups()
    return Goal(suite or "", task, field or "accuracy", sign, float(value))
