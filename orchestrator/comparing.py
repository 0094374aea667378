"""Runs side by side, and a paired test of their last models on the held-out problems that both answered. (pure)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from orchestrator.display.wording import count, duration, harmless, percent, score
from orchestrator.trend import Z95, panel_of
from profiles.metrics import SECONDS, TOKENS, TOKENS_MEAN, TRUNCATED
from state.history import CycleFacts, History, StepFacts

NEWEST_STEPS = 100
"""Steps whose medians stand for a run's speed and lengths."""
PARTS_SHOWN = 3
NOT_COMPARED = ("name", "description", "extends")
"""Of a profile: what it is called changes nothing."""


@dataclass(frozen=True)
class Compared:
    """What is known of one run. steps: all trained steps, oldest first. profile: resolved, as stored."""

    history: History
    profile: Mapping[str, Any]
    steps: Sequence[StepFacts]

    @property
    def last_validated(self) -> CycleFacts | None:
        """The newest cycle with a validation."""
        known = [*self.history.recent, *([self.history.current] if self.history.current else [])]
        return next((cycle for cycle in reversed(known) if cycle.validations), None)


@dataclass(frozen=True)
class Row:
    """One line of the table: a cell for each run."""

    name: str
    cells: tuple[str, ...]


def table(runs: Sequence[Compared]) -> list[Row]:
    """The runs side by side."""
    rows = [
        Row("run", tuple(harmless(one.history.name) for one in runs)),
        Row("profile", tuple(harmless(str(one.profile.get("name", ""))) for one in runs)),
        Row("state", tuple(one.history.state.value for one in runs)),
        Row("steps", tuple(count(one.history.step) for one in runs)),
        Row("trained", tuple(duration(one.history.training_s) for one in runs)),
        Row("tokens", tuple(_total(one, TOKENS.name) for one in runs)),
        Row("held-out", tuple(_accuracy(one) for one in runs)),
        Row("best", tuple(_best(one) for one in runs)),
        Row("a step", tuple(duration(_median(one, SECONDS.name) or None) for one in runs)),
        *_where_time_goes(runs),
        Row("tokens/answer", tuple(_figure(_median(one, TOKENS_MEAN.name)) for one in runs)),
        Row("cut", tuple(percent(_median(one, TRUNCATED.name)) for one in runs)),
        Row("reward", tuple(_spread([step.reward for step in one.steps[-NEWEST_STEPS:]]) for one in runs)),
    ]
    return [row for row in rows if set(row.cells) != {"?"} and any(cell not in ("", "?") for cell in row.cells)]


def _total(one: Compared, name: str) -> str:
    return count(sum(float(step.metrics.get(name, 0)) for step in one.steps)) if one.steps else "?"


def _median(one: Compared, name: str) -> float | None:
    if name == SECONDS.name:
        found = [step.seconds for step in one.steps[-NEWEST_STEPS:] if step.seconds]
    else:
        found = [float(step.metrics[name]) for step in one.steps[-NEWEST_STEPS:] if name in step.metrics]
    return median(found) if found else None


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _spread(values: Sequence[float]) -> str:
    """Median and the middle half."""
    if not values:
        return "?"
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered) - 1) // 4]
    return f"{median(ordered):+.3f} [{low:+.3f}, {high:+.3f}]"


def _accuracy(one: Compared) -> str:
    last = one.history.last_validation
    if last is None:
        return "not validated"
    mean = last.metrics.get("mean", {})
    interval = f" [{mean['low']:.2f}, {mean['high']:.2f}]" if "low" in mean and "high" in mean else ""
    return f"{score(last.accuracy)}{interval} (step {count(last.step)})"


def _best(one: Compared) -> str:
    best = one.history.best_validation
    return "?" if best is None else f"{score(best.accuracy)} (step {count(best.step)})"


def _where_time_goes(runs: Sequence[Compared]) -> list[Row]:
    """The parts of a step that are largest in any of the runs."""
    prefix = f"{SECONDS.name}/"
    names = {
        name for one in runs for step in one.steps[-NEWEST_STEPS:] for name in step.metrics if name.startswith(prefix)
    }
    shares = {name: [_share(one, name) for one in runs] for name in names}
    largest = sorted(names, key=lambda name: (-max(shares[name]), name))[:PARTS_SHOWN]
    return [Row(f"  {name.removeprefix(prefix)}", tuple(percent(one) for one in shares[name])) for name in largest]


def _share(one: Compared, name: str) -> float:
    whole = _median(one, SECONDS.name)
    return (_median(one, name) or 0.0) / whole if whole else 0.0


# --- differences ------------------------------------------------------------------------------------------------------


def accuracy_difference(first: Compared, other: Compared) -> str:
    """The other's last model against the first's: points with a 95 % interval, problem by problem where both answered.

    On the same problems, so that the difficulty of a problem cancels out (`orchestrator.trend`).
    """
    mine, theirs = first.last_validated, other.last_validated
    names = f"{harmless(other.history.name)} - {harmless(first.history.name)}"
    if mine is None or theirs is None:
        return f"{names}: not both are validated"
    suites = {one.suite for one in mine.validations} & {one.suite for one in theirs.validations}
    if not suites:
        return f"{names}: no held-out suite that both answered"
    pair = [
        replace(cycle, cycle=place, validations=tuple(one for one in cycle.validations if one.suite in suites))
        for place, cycle in enumerate((mine, theirs))
    ]
    panel = panel_of(pair)
    change, error = panel.contrast([-1.0, 1.0])
    low, high = 100 * (change - Z95 * error), 100 * (change + Z95 * error)
    how = f"the same {panel.num_problems} problems" if panel.is_paired else "different problems"
    sure = "beyond noise" if low > 0 or high < 0 else "within noise"
    return f"{names}: {100 * change:+.1f} points (95 %: {low:+.1f} to {high:+.1f}; {how}), {sure}"


def profile_differences(runs: Sequence[Compared]) -> list[Row]:
    """Knobs that are not the same in all runs."""
    flat = [dict(_flattened(one.profile)) for one in runs]
    names = sorted({name for one in flat for name in one})
    rows = [Row(name, tuple(harmless(str(one.get(name, "-"))) for one in flat)) for name in names]
    return [row for row in rows if len(set(row.cells)) > 1]


def _flattened(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if not above and name in NOT_COMPARED:
            continue
        if isinstance(inner, Mapping):
            yield from _flattened(inner, f"{above}{name}.")
        else:
            yield f"{above}{name}", inner


# --- text -------------------------------------------------------------------------------------------------------------


def as_text(runs: Sequence[Compared]) -> str:
    parts = [_aligned(table(runs)), "".join(f"{accuracy_difference(runs[0], one)}\n" for one in runs[1:])]
    if differences := profile_differences(runs):
        parts.append(_aligned([Row("knob", tuple(harmless(one.history.name) for one in runs)), *differences]))
    return "\n".join(parts)


def _aligned(rows: Sequence[Row]) -> str:
    columns = list(zip(*((row.name, *row.cells) for row in rows), strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip((row.name, *row.cells), widths, strict=True)).rstrip()
        for row in rows
    ]
    return "".join(f"{line}\n" for line in lines)


def as_markdown(runs: Sequence[Compared]) -> str:
    """The same as tables for a message or a pull request."""
    parts = [_piped(table(runs)), "".join(f"- {_escaped(accuracy_difference(runs[0], one))}\n" for one in runs[1:])]
    if differences := profile_differences(runs):
        parts.append(_piped([Row("knob", tuple(one.history.name for one in runs)), *differences]))
    return "\n".join(parts)


def _piped(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(_escaped(cell.strip()) for cell in (row.name, *row.cells)) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * (1 + len(rows[0].cells)))
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "\\|`*_<>[]" else sign for sign in text)


def as_json(runs: Sequence[Compared]) -> dict[str, Any]:
    return {
        "runs": {row.name.strip(): list(row.cells) for row in table(runs)},
        "differences": [accuracy_difference(runs[0], one) for one in runs[1:]],
        "profiles": {row.name: list(row.cells) for row in profile_differences(runs)},
    }
