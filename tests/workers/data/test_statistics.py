"""Statistics of a set of tasks."""

from __future__ import annotations

import pytest

from tests.workers.data.given import ADD, TWICE, line, problem
from workers.data.record import BadLine, parse_line
from workers.data.sources import Item
from workers.data.statistics import num_statements, rate_bucket, statistics_of, step_bucket


def items(*texts: str) -> list[Item]:
    found = []
    for number, text in enumerate(texts, start=1):
        try:
            found += [Item(number, record) for record in parse_line(text.encode())]
        except BadLine as bad:
            found.append(Item(number, None, bad.reason, str(bad)))
    return found


def test_every_table_counts_every_task_once() -> None:
    texts = [
        line(origin={"run": "night", "step": 12}, source="selfplay", solve_rate=0.5),
        line(origin={"file": "a.jsonl", "line": 3}),
        line("# the same\n" + ADD),
        line(TWICE, task="abd", step=400),
        problem(source="seed", solve_rate=1.0),
        line("def f(a"),
        "nonsense",
    ]
    found = statistics_of(items(*texts))
    assert found == {
        "tasks": 6,
        "by_task": {"ded": 4, "abd": 1, "ind": 1},
        "by_source": {"import": 4, "selfplay": 1, "seed": 1},
        "by_run": {"unknown": 4, "night": 1, "a.jsonl": 1},
        "by_step": {"0": 4, "10-29": 1, "300-999": 1},
        "by_solve_rate": {"to .5": 1, "always": 1, "unknown": 4},
        "by_statements": {-1: 1, 1: 5},
        "distinct_programs": 3,
        "duplicates": 2,
        "without_key": 1,
        "unreadable": {"not_json": 1},
    }
    for table in ("by_task", "by_source", "by_run", "by_step", "by_solve_rate", "by_statements"):
        assert sum(found[table].values()) == found["tasks"]


@pytest.mark.parametrize(
    ("step", "bucket"), [(0, "0"), (1, "1-9"), (9, "1-9"), (10, "10-29"), (999, "300-999"), (10**9, "10000-")]
)
def test_steps_are_counted_in_rows(step: int, bucket: str) -> None:
    assert step_bucket(step) == bucket


@pytest.mark.parametrize(
    ("rate", "bucket"),
    [(0, "never"), (0.1, "to .25"), (0.25, "to .25"), (0.26, "to .5"), (0.75, "to .75"), (0.9, "below 1"),
     (1, "always"), (-1, "unknown"), (7.5, "unknown"), (float("nan"), "unknown")],
)  # fmt: skip
def test_solve_rates_are_counted_in_rows(rate: float, bucket: str) -> None:
    assert rate_bucket(rate) == bucket


@pytest.mark.parametrize(
    ("program", "number"),
    [(ADD, 1), ("def f(a):\n    if a:\n        a = 1\n    return a", 3), ("def g(a):\n    return a", -1), ("f(", -1)],
)
def test_statements_are_those_of_the_entry_function(program: str, number: int) -> None:
    assert num_statements(program) == number
