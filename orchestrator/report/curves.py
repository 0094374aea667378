"""Curves of a run from its thinned series: one metric, its spread, where the time goes, throughput. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from orchestrator.report.svg import Area, Chart, Line, Points
from profiles.metrics import LENGTHS_AT, QUANTILES, REWARDS_AT, SECONDS, Metric, Unit
from state.series import COLUMNS, Spread, Thinned, edges_of

PARTS_SHOWN = 6
"""The largest parts of a step; the others are one."""
REST = "the rest"


def points_of(series: Thinned, name: str) -> Points:
    """The means of a metric, without the buckets that have none."""
    found = series.metrics.get(name, ())
    return tuple((x, one.mean) for x, one in zip(series.middles, found, strict=False) if one is not None)


def line_of(series: Thinned, name: str, label: str, style: str, run: int = 0) -> tuple[Line, ...]:
    """A line if any step reported the metric."""
    points = points_of(series, name)
    return (Line(label, style, points, run),) if points else ()


def range_of(series: Thinned, name: str, style: str, run: int = 0) -> tuple[Area, ...]:
    """From the lowest to the highest step of each bucket, where buckets have several steps."""
    found = [(x, one) for x, one in zip(series.middles, series.metrics.get(name, ()), strict=False) if one is not None]
    if not any(one.num_steps > 1 for _, one in found):
        return ()
    return (Area(style, tuple((x, one.low) for x, one in found), tuple((x, one.high) for x, one in found), run),)


def what_a_point_is(series: Thinned, *metrics: str) -> str:
    """The end of a note under a chart of these metrics; empty where every point is one step."""
    size = max((end - first for first, end in pairwise(series.edges)), default=1)
    if size <= 1:
        return ""
    is_read_whole = series.every == 1 or (metrics and set(metrics) <= set(COLUMNS))
    read = "" if is_read_whole else f", of which every {series.every}th was read"
    return f"; a point is the mean of {size:,} steps{read}"


# --- distributions ----------------------------------------------------------------------------------------------------


def coarse(points: Points, most: int = 40) -> Points:
    """Means of neighbours, at most `most`: quantiles of one step's rollouts, which may be of two values, flicker."""
    edges = edges_of(0, len(points) - 1, most)
    return tuple(
        (sum(x for x, _ in points[a:b]) / (b - a), sum(y for _, y in points[a:b]) / (b - a)) for a, b in pairwise(edges)
    )


def fan(series: Thinned, metric: Metric, style: str, run: int = 0) -> tuple[tuple[Line, ...], tuple[Area, ...]]:
    """The median, and bands of the middle half and of all but a tenth at each end. Empty without quantiles."""
    at = {percent: coarse(points_of(series, metric.of(f"p{percent}"))) for percent in QUANTILES}
    if not all(at.values()):
        return (), ()
    low, first, middle, third, high = (at[percent] for percent in QUANTILES)
    return (Line("median", style, middle, run),), (Area(style, low, high, run), Area(style, first, third, run))


def fan_charts(series: Thinned, every: str) -> list[Chart]:
    """How rewards and lengths of rollouts are spread."""
    charts = []
    for title, metric in (("Rewards of rollouts", REWARDS_AT), ("Lengths of rollouts", LENGTHS_AT)):
        lines, areas = fan(series, metric, "run0")
        if lines:
            unit = "" if metric.unit is Unit.REWARD else f" ({metric.unit})"
            note = f"median{unit}; bands: the middle half, and all but a tenth at each end{every}"
            charts.append(Chart(title, note, lines, areas))
    return charts


# --- time -------------------------------------------------------------------------------------------------------------


def seconds_of_parts(series: Thinned) -> dict[str, float]:
    """Part of a step -> its seconds in the whole run, largest first, with what no part accounts for.

    Of buckets of which some steps were read, the mean stands for all of them.
    """
    prefix = f"{SECONDS.name}/"
    sizes = [end - first for first, end in pairwise(series.edges)]
    found = {
        name.removeprefix(prefix): sum(one.mean * size for one, size in zip(spreads, sizes, strict=True) if one)
        for name, spreads in series.metrics.items()
        if name.startswith(prefix)
    }
    whole = series.seconds[-1] if series.seconds else 0.0
    ordered = dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
    rest = whole - sum(ordered.values())
    return {**ordered, REST: rest} if ordered and rest > 0.005 * whole else ordered


def time_chart(series: Thinned, every: str) -> list[Chart]:
    """Shares of a step's seconds, one above the other."""
    parts = [name for name in seconds_of_parts(series) if name != REST][:PARTS_SHOWN]
    whole = dict(points_of(series, SECONDS.name))
    xs = sorted(whole)
    if not parts or len(xs) < 2:
        return []
    lines, areas = [], []
    below = dict.fromkeys(xs, 0.0)
    for number, part in enumerate(parts):
        values = dict(points_of(series, f"{SECONDS.name}/{part}"))
        top = {x: min(1.0, below[x] + (values.get(x, 0.0) / whole[x] if whole[x] else 0.0)) for x in xs}
        areas.append(Area(f"part run{number}", tuple(below.items()), tuple(top.items())))
        shares = tuple((x, top[x] - below[x]) for x in xs)
        lines.append(Line(part, f"part run{number}", shares))
        below = top
    note = f"share of a step's seconds; above the areas: {REST}{every}"
    return [Chart("Where a step's time goes", note, tuple(lines), tuple(areas), (0.0, 1.0))]


def throughput(series: Thinned, label: str, style: str, run: int = 0) -> tuple[Line, ...]:
    """Completion tokens trained on, by all seconds of their steps: exact, from the totals.

    series: from the run's first step on.
    """
    tokens, seconds = pairwise((0, *series.tokens)), pairwise((0.0, *series.seconds))
    points = tuple(
        (x, (now - before) / (ended - began))
        for x, (before, now), (began, ended) in zip(series.middles, tokens, seconds, strict=True)
        if ended > began
    )
    return (Line(label, style, points, run),) if any(y for _, y in points) else ()


def mean_of(spreads: Iterable[Spread | None]) -> float | None:
    """Over all steps that were read; None if there are none."""
    found = [one for one in spreads if one is not None]
    steps = sum(one.num_steps for one in found)
    return sum(one.mean * one.num_steps for one in found) / steps if steps else None
