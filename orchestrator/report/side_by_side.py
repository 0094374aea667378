"""The page of several runs: figures, tests of differences, curves of all in one chart, knobs that differ. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.comparing import (
    CURVES,
    Compared,
    Row,
    accuracy_difference,
    profile_differences,
    suites_of,
    table,
)
from orchestrator.display.wording import duration, percent
from orchestrator.report.cards import chart_section
from orchestrator.report.charts import NUM_COLOURS
from orchestrator.report.curves import fan, line_of, range_of, seconds_of_parts, throughput
from orchestrator.report.escaping import text
from orchestrator.report.page import page, section
from orchestrator.report.svg import Area, Chart, Line
from orchestrator.report.tables import table as html_table
from profiles.metrics import LENGTHS_AT, REWARDS_AT, Metric, Unit


def render(runs: Sequence[Compared]) -> str:
    """The page as HTML."""
    names = [one.name for one in runs]
    curves, data = chart_section(charts(runs), [one.clock for one in runs])
    differences = "".join(f"<li>{text(accuracy_difference(runs[0], one))}</li>" for one in runs[1:])
    body = [
        f"<h1>{text(' · '.join(names))}</h1>",
        f'<p class="sub">{len(runs)} runs; the others are compared with {text(names[0])}</p>',
        section("Held-out accuracy, problem by problem", f'<ul class="card facts">{differences}</ul>'),
        section("Figures", _table(table(runs))),
        section("Curves", curves),
        section("Where the time went", _times(runs)),
        section("Knobs that differ", _table([Row("knob", tuple(names)), *profile_differences(runs)])),
    ]
    return page(f"Longhaul: {', '.join(names)}", "\n".join(body), data)


def _table(rows: Sequence[Row]) -> str:
    head, *rest = rows
    indented = [(row.name.replace("  ", "\u2003"), *row.cells) for row in rest]
    return html_table((head.name, *head.cells), indented)


def _times(runs: Sequence[Compared]) -> str:
    """Time in each part of the steps, over the whole of each run."""
    parts = [seconds_of_parts(one.series) for one in runs]
    names = dict.fromkeys(name for one in parts for name in one)
    rows = [
        (name, *(_time(found.get(name), one.series.seconds) for one, found in zip(runs, parts, strict=True)))
        for name in names
    ]
    whole = ("all steps", *(duration(one.series.seconds[-1] if one.series.seconds else None) for one in runs))
    return html_table(("part of a step", *(one.name for one in runs)), [whole, *rows])


def _time(seconds: float | None, whole: Sequence[float]) -> str:
    return "" if seconds is None else f"{duration(seconds)} ({percent(seconds / whole[-1])})"


# --- charts -----------------------------------------------------------------------------------------------------------


def charts(runs: Sequence[Compared]) -> list[Chart]:
    """One chart for each suite and metric, with a line for each run, but for what is 0 in all of them."""
    found = [
        *(_held_out(runs, suite) for suite in suites_of(runs)),
        *(_of_metric(runs, metric) for metric in CURVES),
        _fans(runs, "Rewards of rollouts", REWARDS_AT),
        _fans(runs, "Lengths of rollouts", LENGTHS_AT),
        Chart(
            "Throughput",
            "completion tokens a second, by all seconds of the steps",
            tuple(line for n, one in enumerate(runs) for line in throughput(one.series, one.name, style_of(n), n)),
        ),
    ]
    return [chart for chart in found if any(y for line in chart.lines for _, y in line.points)]


def style_of(run: int) -> str:
    """Colour of a run; from the ninth on the same with dashes."""
    return f"run{run % NUM_COLOURS}" + (" sampled" if run >= NUM_COLOURS else "")


def _held_out(runs: Sequence[Compared], suite: str) -> Chart:
    lines, areas = [], []
    for number, one in enumerate(runs):
        scores = one.scores(suite)
        lines.append(Line(one.name, style_of(number), tuple((p.step, p.greedy) for p in scores), number))
        low, high = tuple((p.step, p.low) for p in scores), tuple((p.step, p.high) for p in scores)
        areas.append(Area(style_of(number), low, high, number))
    note = "greedy accuracy, mean of the tasks; bands: 95 % intervals"
    return Chart(f"Held-out: {suite}", note, tuple(lines), tuple(areas), (0.0, 1.0))


def _of_metric(runs: Sequence[Compared], metric: Metric) -> Chart:
    lines = [line for n, one in enumerate(runs) for line in line_of(one.series, metric.name, one.name, style_of(n), n)]
    areas = [area for n, one in enumerate(runs) for area in range_of(one.series, metric.name, style_of(n), n)]
    unit = f" ({metric.unit})" if metric.unit is not Unit.NONE else ""
    bands = "; bands: lowest and highest step of a point" if areas else ""
    title = metric.label.upper() if len(metric.label) == 2 else metric.label.capitalize()
    return Chart(title, f"{metric.meaning}{unit}{bands}", tuple(lines), tuple(areas))


def _fans(runs: Sequence[Compared], title: str, metric: Metric) -> Chart:
    lines: list[Line] = []
    areas: list[Area] = []
    for number, one in enumerate(runs):
        median, bands = fan(one.series, metric, style_of(number), number)
        lines += [Line(one.name, style_of(number), line.points, number) for line in median]
        areas += bands[1:]
    return Chart(title, "medians; bands: the middle half of the rollouts", tuple(lines), tuple(areas))
