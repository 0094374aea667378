"""What the values of a function amount to, and what most often is wrong with them, in sentences. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from workers.reward_test.rows import Kind, Row
from workers.verifiers.answers import is_formatted
from workers.verifiers.verify import judge

SHOWN = 60
"""Characters of a text in an example."""
MOSTLY = 0.9


@dataclass(frozen=True)
class Judged:
    """What a function gave for the completions of a row; None: it failed. seconds: of its calls."""

    row: Row
    values: tuple[float | None, ...]
    seconds: float
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    row: Row
    text: str
    kind: Kind
    value: float

    def __str__(self) -> str:
        gold = self.row.problem.gold
        right = f"answer {shown(gold)}, " if gold else ""
        return f"row {self.row.problem.line}: {right}completion {shown(self.text)} gets {self.value:g}"


def summary(name: str, judged: Sequence[Judged]) -> dict[str, Any]:
    """The function's line of the table. `equal_groups`: share of the rows whose rewards are all equal."""
    values = [value for one in judged for value in one.values if value is not None]
    groups = [one.values for one in judged if len(one.values) > 1 and None not in one.values]
    slowest = max(judged, key=lambda one: one.seconds)
    failures = [why for one in judged for why in one.failures]
    return {
        "function": name,
        "values": len(values),
        "mean": fmean(values) if values else None,
        "spread": pstdev(values) if values else None,
        "low": min(values, default=None),
        "high": max(values, default=None),
        "equal_groups": fmean(len(set(group)) == 1 for group in groups) if groups else None,
        "slowest_row": slowest.row.problem.line,
        "slowest_s": slowest.seconds,
        "exceptions": len(failures),
        "first_exception": failures[0] if failures else "",
    }


def advice(name: str, judged: Sequence[Judged]) -> list[str]:
    """Sentences about one function; none if nothing is odd."""
    cells = [
        Cell(one.row, text, kind, value)
        for one in judged
        for text, kind, value in zip(one.row.completions, one.row.kinds, one.values, strict=True)
        if value is not None
    ]
    if not cells:
        return [f"{name}: every call failed"]
    first = next((one for one in cells if one.kind in ("right", "given")), cells[0])
    values = {one.value for one in cells}
    if values == {0.0}:
        also = ", the right answers in a box included" if first.kind == "right" else ""
        return [f"{name} gives 0 to all {len(cells)} completions{also}: none has what it looks for. E.g. {first}."]
    if len(values) == 1:
        return [f"{name} gives {first.value:g} to all {len(cells)} completions: nothing can be learned. E.g. {first}."]
    return [*_undecided(name, cells), *_equal(name, judged)]


def _undecided(name: str, cells: Sequence[Cell]) -> list[str]:
    """Of obvious completions: rows where a right answer earns no more than a wrong one."""
    by_row: dict[int, dict[Kind, Cell]] = {}
    for one in cells:
        by_row.setdefault(one.row.problem.line, {})[one.kind] = one
    both = [kinds for kinds in by_row.values() if "right" in kinds and "wrong" in kinds]
    odd = [kinds for kinds in both if kinds["right"].value <= kinds["wrong"].value]
    if not odd:
        return []
    where = "; fine for form or length, not for the answer" if len(odd) == len(both) else ""
    right, wrong = odd[0]["right"], odd[0]["wrong"]
    return [
        f"{name} gives a right answer no more than a wrong one in {len(odd)} of {len(both)} rows{where}. "
        f"E.g. {right}, completion {shown(wrong.text)} gets {wrong.value:g}."
    ]


def _equal(name: str, judged: Sequence[Judged]) -> list[str]:
    groups = [one for one in judged if len(one.values) > 1 and None not in one.values]
    equal = [one for one in groups if len(set(one.values)) == 1]
    if not groups or len(equal) < MOSTLY * len(groups):
        return []
    row, values = equal[0].row.problem.line, equal[0].values
    return [
        f"{name} gives equal rewards to all completions of a row in {len(equal)} of {len(groups)} rows. GRPO learns "
        f"nothing from these. E.g. row {row}: {len(values)} times {values[0]:g}."
    ]


def of_completions(rows: Sequence[Row]) -> list[str]:
    """Sentences about given completions, as the built-in parts `correct` and `format` see them."""
    given = [(row, text) for row in rows for text in row.completions if "given" in row.kinds]
    if not given:
        return []
    row, text = given[0]
    example = f"E.g. row {row.problem.line}: {shown(text)}."
    found = []
    if all(judge(row.problem.gold, text).extracted is None for row, text in given):
        found.append(f"the part `correct` finds an answer in no completion; it reads \\boxed{{4}}, for one. {example}")
    if not any(is_formatted(text) for _, text in given):
        why = "a thought that ends once, then a number in a box"
        found.append(f"no completion has the format of the part `format`: {why}. {example}")
    return found


def shown(text: str) -> str:
    """A text in quotes, cut."""
    return f'"{text}"' if len(text) <= SHOWN else f'"{text[: SHOWN - 3]}..."'


def report(rows: Sequence[Row], judged: Mapping[str, Sequence[Judged]]) -> dict[str, Any]:
    """The reply of `rewards test`."""
    return {
        "rows": len(rows),
        "completions": sum(len(row.completions) for row in rows),
        "obvious": any("empty" in row.kinds for row in rows),
        "functions": [summary(name, found) for name, found in judged.items()],
        "advice": [line for name, found in judged.items() for line in advice(name, found)] + of_completions(rows),
    }
