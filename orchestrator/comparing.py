"""Runs side by side: figures, curves, and a paired test on the held-out problems that both answered. (pure)"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from orchestrator.display.scores import Score, task_scores
from orchestrator.display.wording import count, duration, harmless, percent, score
from orchestrator.report.axes import Axis, Clock, place
from orchestrator.report.curves import points_of
from orchestrator.report.text_curves import TextCurve, block
from orchestrator.trend import Z95, panel_of
from profiles.metrics import (
    ACCURACY,
    CLIP_FRACTION,
    ENTROPY,
    GRAD_NORM,
    KL,
    LENGTHS_AT,
    MISMATCH_MEAN,
    QUANTILES,
    REWARD,
    REWARDS_AT,
    SECONDS,
    TOKENS,
    TOKENS_MEAN,
    TRUNCATED,
    Metric,
)
from state.history import CycleFacts, History, StepFacts, ValidationFacts
from state.series import Thinned

NEWEST_STEPS = 100
"""Steps whose medians stand for a run's speed and lengths."""
PARTS_SHOWN = 4
NOT_COMPARED = ("name", "description", "extends")
"""Of a profile: what it is called changes nothing."""


@dataclass(frozen=True)
class Compared:
    """What is known of one run. profile: resolved, as stored. newest: the last NEWEST_STEPS steps, oldest first."""

    history: History
    profile: Mapping[str, Any]
    newest: Sequence[StepFacts]
    series: Thinned
    """Of all steps, at least `compared_metrics`."""
    validations: Sequence[ValidationFacts]
    """Oldest first, of all suites, thinned out in long runs."""
    greedy: Mapping[str, Sequence[Score]]
    """Suite -> greedy accuracy, the mean over its tasks, of every validation, oldest first."""

    @property
    def name(self) -> str:
        return harmless(self.history.name)

    @property
    def last_validated(self) -> CycleFacts | None:
        """The newest cycle with a validation."""
        known = [*self.history.recent, *([self.history.current] if self.history.current else [])]
        return next((cycle for cycle in reversed(known) if cycle.validations), None)

    @property
    def clock(self) -> Clock:
        return Clock.of(self.series)

    def scores(self, suite: str) -> list[Score]:
        """Mean over the tasks of one suite, oldest first."""
        of_suite = tuple(one for one in self.validations if one.suite == suite)
        rows = task_scores(of_suite, None)
        return list(rows[-1].scores) if rows else []

    def median_of(self, name: str) -> float | None:
        """Over the newest steps that report it."""
        found = self.values_of(name)
        return median(found) if found else None

    def values_of(self, name: str) -> list[float]:
        """Of the newest steps that report it."""
        return [value for step in self.newest if (value := step.metrics.get(name)) is not None]


CURVES = (REWARD, ACCURACY, TOKENS_MEAN, TRUNCATED, ENTROPY, GRAD_NORM, KL, CLIP_FRACTION, MISMATCH_MEAN, SECONDS)
"""Metrics of training whose curves are compared, if any of the runs has them."""
IN_TEXT = (REWARD, TOKENS_MEAN, ENTROPY)


def compared_metrics(names: Collection[str]) -> list[str]:
    """Those of a run's metrics that a comparison shows."""
    alone = {one.name for one in CURVES}
    families = tuple(f"{family}/" for family in (REWARDS_AT.family, LENGTHS_AT.family, SECONDS.name))
    return [name for name in names if name in alone or name.startswith(families)]


def suites_of(runs: Sequence[Compared]) -> list[str]:
    """Suites on which every run was validated, in the order of the first run."""
    first = dict.fromkeys(one.suite for one in runs[0].validations)
    return [suite for suite in first if all(suite in {v.suite for v in one.validations} for one in runs)]


@dataclass(frozen=True)
class Row:
    """One line of the table: a cell for each run."""

    name: str
    cells: tuple[str, ...]
    key: str = ""
    """In JSON, if another row has the same name; empty: the name."""


def table(runs: Sequence[Compared]) -> list[Row]:
    """The runs side by side."""
    rows = [
        Row("run", tuple(one.name for one in runs)),
        Row("profile", tuple(harmless(str(one.profile.get("name", ""))) for one in runs)),
        Row("state", tuple(one.history.state.value for one in runs)),
        Row("steps", tuple(count(one.history.step) for one in runs)),
        Row("trained", tuple(duration(one.history.training_s) for one in runs)),
        Row("tokens", tuple(count(one.series.tokens[-1]) if one.series.tokens else "?" for one in runs)),
        Row("held-out", tuple(_accuracy(one) for one in runs)),
        Row("best", tuple(_best(one) for one in runs)),
        *(_at_equal_cost(runs) if len(runs) > 1 else []),
        Row("a step", tuple(duration(_step_time(one)) for one in runs)),
        *_where_time_goes(runs),
        Row("tokens/s", tuple(_figure(_rate(one)) for one in runs)),
        Row("tokens/answer", tuple(_figure(one.median_of(TOKENS_MEAN.name)) for one in runs)),
        Row("  p10 to p90", tuple(_quantiles(one, LENGTHS_AT, ",.0f") for one in runs), "tokens/answer p10 to p90"),
        Row("cut", tuple(percent(one.median_of(TRUNCATED.name)) for one in runs)),
        Row("reward", tuple(_spread(one.values_of(REWARD.name)) for one in runs)),
        Row("  p10 to p90", tuple(_quantiles(one, REWARDS_AT, "+.2f") for one in runs), "reward p10 to p90"),
    ]
    return [row for row in rows if set(row.cells) != {"?"} and any(cell not in ("", "?") for cell in row.cells)]


def _at_equal_cost(runs: Sequence[Compared]) -> list[Row]:
    """Held-out accuracy of each run where the shortest of them ended, by steps, tokens and hours."""
    suites = suites_of(runs)
    if not suites:
        return []
    rows = []
    for axis in Axis:
        end = min(one.clock.end(axis) for one in runs)
        cells = []
        for one in runs:
            # Of all validations: those that are left of a long run for its curve are the best and worst of a stretch.
            before = [score for score in one.greedy[suites[0]] if one.clock.at(score.step, axis) <= end * (1 + 1e-9)]
            cells.append(f"{score(before[-1].greedy)}{_interval(before[-1])}" if before else "?")
        rows.append(Row(f"  at {place(end, axis)}", tuple(cells)))
    return rows


def _interval(one: Score) -> str:
    return f" [{one.low:.2f}, {one.high:.2f}]" if one.high > one.low else ""


def _step_time(one: Compared) -> float | None:
    found = [step.seconds for step in one.newest if step.seconds]
    return median(found) if found else None


def _rate(one: Compared) -> float | None:
    """Completion tokens a second of the newest steps."""
    seconds = sum(step.seconds for step in one.newest)
    return sum(float(step.metrics.get(TOKENS.name) or 0) for step in one.newest) / seconds if seconds else None


def _quantiles(one: Compared, metric: Metric, form: str) -> str:
    """Of the rollouts of a step, medians over the newest steps."""
    found = [one.median_of(metric.of(f"p{percent}")) for percent in QUANTILES]
    return " ".join(format(value, form) for value in found if value is not None) or "?"


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
    names = {name for one in runs for step in one.newest for name in step.metrics if name.startswith(prefix)}
    shares = {name: [_share(one, name) for one in runs] for name in names}
    largest = sorted(names, key=lambda name: (-max(shares[name]), name))[:PARTS_SHOWN]
    return [Row(f"  {name.removeprefix(prefix)}", tuple(percent(one) for one in shares[name])) for name in largest]


def _share(one: Compared, name: str) -> float:
    whole = _step_time(one)
    return (one.median_of(name) or 0.0) / whole if whole else 0.0


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
    if any(stratum.halves == 2 for stratum in panel.strata):
        how = f"greedy and sampled, {how}"
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


def curves(runs: Sequence[Compared]) -> str:
    """Curves over steps, tokens and hours, as lines of characters."""
    blocks = []
    for suite in suites_of(runs):
        points = [tuple((float(one.step), one.greedy) for one in run.scores(suite)) for run in runs]
        blocks.append((f"held-out accuracy ({harmless(suite)})", points))
    for metric in IN_TEXT:
        blocks.append((f"{metric.label} in training", [points_of(run.series, metric.name) for run in runs]))
    drawn = [
        block(title, [TextCurve(run.name, one, run.clock) for run, one in zip(runs, points, strict=True)])
        for title, points in blocks
    ]
    return "\n".join(filter(None, drawn))


def as_text(runs: Sequence[Compared]) -> str:
    parts = [
        _aligned(table(runs)),
        "".join(f"{accuracy_difference(runs[0], one)}\n" for one in runs[1:]),
        curves(runs),
    ]
    if differences := profile_differences(runs):
        parts.append(_aligned([Row("knob", tuple(one.name for one in runs)), *differences]))
    return "\n".join(filter(None, parts))


def _aligned(rows: Sequence[Row]) -> str:
    columns = list(zip(*((row.name, *row.cells) for row in rows), strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip((row.name, *row.cells), widths, strict=True)).rstrip()
        for row in rows
    ]
    return "".join(f"{line}\n" for line in lines)


def as_markdown(runs: Sequence[Compared]) -> str:
    """The same for a message or a pull request: tables, and curves in a block of code."""
    parts = [
        _piped(table(runs)),
        "".join(f"- {_escaped(accuracy_difference(runs[0], one))}\n" for one in runs[1:]),
        _fenced(drawn) if (drawn := curves(runs)) else "",
    ]
    if differences := profile_differences(runs):
        parts.append(_piped([Row("knob", tuple(one.name for one in runs)), *differences]))
    return "\n".join(filter(None, parts))


def _fenced(text: str) -> str:
    """A block of code that no name in it can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}{fence}\n"


def _piped(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(_escaped(cell.strip()) for cell in (row.name, *row.cells)) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * (1 + len(rows[0].cells)))
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "\\|`*_<>[]" else sign for sign in text)


def as_json(runs: Sequence[Compared]) -> dict[str, Any]:
    return {
        "runs": {row.key or row.name.strip(): list(row.cells) for row in table(runs)},
        "differences": [accuracy_difference(runs[0], one) for one in runs[1:]],
        "profiles": {row.name: list(row.cells) for row in profile_differences(runs)},
    }
