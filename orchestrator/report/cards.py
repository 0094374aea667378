"""Cards with a chart over each axis, a legend, and the data for values under the pointer. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from orchestrator.report.axes import Axis, Clock, on_axis
from orchestrator.report.escaping import text
from orchestrator.report.svg import LEFT, RIGHT, WIDTH, Chart, draw, scale_of


def chart_section(charts: Sequence[Chart], clocks: Sequence[Clock]) -> tuple[str, dict[str, Any]]:
    """(cards under a choice of the axis, the page's data). charts: over steps.

    The choice works without a script: a radio button's rule hides what is drawn over other axes.
    """
    choice = "".join(
        f'<input type="radio" name="axis" id="axis-{axis}"{" checked" if axis is Axis.STEPS else ""}>'
        f'<label for="axis-{axis}">{text(axis)}</label>'
        for axis in Axis
    )
    cards: list[str] = []
    data: dict[str, Any] = {}
    for number, chart in enumerate(charts):
        drawn = {axis: on_axis(chart, clocks, axis) for axis in Axis}
        cards.append(_card(f"c{number}", chart, drawn))
        data |= {f"c{number}-{axis}": _data_of(one) for axis, one in drawn.items() if any(i.points for i in one.lines)}
    return f'{choice}<div class="charts">{"".join(cards)}</div>', data


def _card(key: str, chart: Chart, drawn: dict[Axis, Chart]) -> str:
    mark = '<svg viewBox="0 0 20 8"><line class="line {}" x1="0" x2="20" y1="4" y2="4"/></svg>'
    legend = "".join(
        f"<span>{mark.format(escape(line.style))}{text(line.name)}<b></b></span>" for line in chart.lines if line.points
    )
    pictures = "".join(f'<div class="over {axis}">{draw(one, f"{key}-{axis}")}</div>' for axis, one in drawn.items())
    return (
        f'<div class="card"><h3>{text(chart.title)}</h3>'
        f'<div class="note">{text(chart.note)}<span class="at"></span></div>'
        f'<div class="legend">{legend}</div>{pictures}</div>'
    )


def _data_of(chart: Chart) -> dict[str, Any]:
    """Data of a chart for the values shown under the pointer."""
    scale, _x, _y = scale_of(chart)
    lines = [line for line in chart.lines if line.points]
    return {
        "x": [scale.x_low, scale.x_high],
        "x_name": chart.x_name,
        "plot": [LEFT, RIGHT, WIDTH],
        "unit": chart.unit,
        "lines": [{"points": [[short(x), short(y)] for x, y in line.points]} for line in lines],
    }


def short(value: float) -> float:
    """Six significant digits; whole numbers stay whole."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
