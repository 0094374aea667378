"""Statistics of a set of tasks: counts by kind, source, step, solve rate and length, and of duplicates. (pure)"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from typing import Any

from workers.data.record import Record, key_of
from workers.data.sources import Item
from workers.sandbox.normalise import program_key
from workers.tasks.entry import UNKNOWN_RATE
from workers.tasks.programs import parse

STEP_BUCKETS = (0, 1, 10, 30, 100, 300, 1000, 3000, 10_000)
"""First step of each row of the table."""
RATE_BUCKETS = (0.25, 0.5, 0.75)


def statistics_of(items: Sequence[Item]) -> dict[str, Any]:
    """Counts, as JSON types. Lines without a task are counted by reason; nothing is run."""
    records = [item.record for item in items if item.record is not None]
    keys = [(record.task, key) for record in records if (key := key_of(record))]
    return {
        "tasks": len(records),
        "by_task": _counted(record.task for record in records),
        "by_source": _counted(record.source for record in records),
        "by_run": _counted(record.origin.run or record.origin.file or "unknown" for record in records),
        "by_step": _ordered([step_bucket(_step(record)) for record in records], _STEPS),
        "by_solve_rate": _ordered([rate_bucket(record.solve_rate) for record in records], _RATES),
        "by_statements": dict(sorted(Counter(num_statements(record.program) for record in records).items())),
        "distinct_programs": len({_program(record) for record in records}),
        "duplicates": len(keys) - len(set(keys)),
        "without_key": len(records) - len(keys),
        "unreadable": _counted(item.reason for item in items if item.record is None),
    }


def _step(record: Record) -> int:
    return record.step if record.origin.step is None else record.origin.step


def step_bucket(step: int) -> str:
    """`0`, `1-9`, `10-29` ... `10000-`."""
    place = max(i for i, first in enumerate(STEP_BUCKETS) if first <= step)
    return _STEPS[place]


def _step_name(place: int) -> str:
    if place == 0:
        return "0"
    last = STEP_BUCKETS[place + 1] - 1 if place + 1 < len(STEP_BUCKETS) else ""
    return f"{STEP_BUCKETS[place]}-{last}"


_STEPS = tuple(_step_name(place) for place in range(len(STEP_BUCKETS)))
_RATES = ("never", "to .25", "to .5", "to .75", "below 1", "always", "unknown")


def rate_bucket(rate: float) -> str:
    """The range of a solve rate, in words; `unknown` for a value that is not a share."""
    if rate == UNKNOWN_RATE or not 0 <= rate <= 1:
        return "unknown"
    if rate in (0, 1):
        return "always" if rate else "never"
    return _RATES[1 + sum(rate > edge for edge in RATE_BUCKETS)]


def num_statements(program: str) -> int:
    """Statements within the entry function `f`, including nested ones; -1 without `f`."""
    tree = parse(program)
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef) and node.name == "f":
            return sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1
    return -1


def _program(record: Record) -> str:
    try:
        return record.program_key or program_key(record.program)
    except (SyntaxError, ValueError):
        return record.program


def _counted(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _ordered(values: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    found = Counter(values)
    return {name: found[name] for name in names if found[name]}
