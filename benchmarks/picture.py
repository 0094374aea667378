"""Draws the pictures of the documents from what a benchmark measured: `picture curves.json OUT.svg`.

curves.json is written by `learning --json` or `gpu_learning --json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_learning import KINDS
from orchestrator.report.svg import HEIGHT, WIDTH, Area, Chart, Line, Points, draw
from profiles.task_kinds import LOOKS, SHOWN

STYLE = """
text { font: 11px system-ui, sans-serif; fill: #667; } .end { text-anchor: end; } .mid { text-anchor: middle; }
.title { font-size: 13px; font-weight: 600; fill: #334; } .grid { stroke: #dde; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; opacity: .85; }
.greedy { stroke: #2563eb; } .sampled { stroke: #16a34a; } .worked { stroke: #d97706; stroke-dasharray: 2 3.5; }
.rewarded { stroke: #2563eb; } .random { stroke: #889; stroke-dasharray: 2 3.5; }
.band { stroke: none; opacity: .15; } .band.rewarded { fill: #2563eb; } .band.random { fill: #889; }
rect { fill: #fff; }
""" + "".join(f".{task} {{ stroke: {LOOKS[task].light}; }}\n" for task in SHOWN)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks picture", description=__doc__)
    parser.add_argument("curves", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args(arguments)
    curves = json.loads(args.curves.read_text())
    is_with_controls = curves.keys() <= KINDS.keys()
    args.out.write_text(beside_controls(curves) if is_with_controls else picture(curves))
    print(f"wrote {args.out}: {len(curves)} {'kinds of run' if is_with_controls else 'runs'}")
    return 0


def picture(curves: dict[str, dict[str, list[dict[str, object]]]]) -> str:
    """Two charts: accuracy and worked share as means of the tasks, and mean length by task. (pure)"""
    runs = [curve["points"] for curve in curves.values()]
    left = Chart(
        "held-out accuracy over training seconds",
        "",
        tuple(Line(name, name, series(points, name)) for points in runs for name in ("greedy", "sampled", "worked")),
        y_range=(0.0, 1.0),
    )
    right = Chart(
        "tokens of a held-out answer",
        "",
        tuple(Line(task, task, length(points, task)) for points in runs for task in SHOWN),
    )
    titles = [
        ("held-out, mean of the tasks, over training seconds", ("greedy", "sampled", "worked")),
        ("tokens of an answer at temperature 1, over training seconds", SHOWN),
    ]
    return side_by_side((left, right), titles)


def beside_controls(curves: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A chart for each kind of training: held-out accuracy and its interval, beside that of random rewards. (pure)"""
    charts, titles = [], []
    for kind in (name for name in curves if not KINDS[name].control):
        shown = [
            (style, curve["points"])
            for style, name in (("rewarded", kind), ("random", f"{kind}-random"))
            for curve in curves.get(name, {}).values()
            if curve["points"]
        ]
        lines = tuple(Line(style, style, means(points, "accuracy")) for style, points in shown)
        areas = tuple(Area(style, means(points, "low"), means(points, "high")) for style, points in shown)
        charts.append(Chart(f"held-out accuracy of {kind} over steps", "", lines, areas, y_range=(0.0, 1.0)))
        titles.append((f"{kind}: held-out accuracy over steps, greedy, 95 %", ("rewarded", "random")))
    return side_by_side(charts, titles)


def side_by_side(charts: Sequence[Chart], titles: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    width, height = len(charts) * (WIDTH + 20) - 20, HEIGHT + 46
    body = "".join(
        header(n * (WIDTH + 20), title, names) + placed(draw(chart, str(n)), n * (WIDTH + 20))
        for n, (chart, (title, names)) in enumerate(zip(charts, titles, strict=True))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><style>{STYLE}</style>'
        f'<rect width="{width}" height="{height}"/>{body}</svg>\n'
    )


def placed(svg: str, x: int) -> str:
    return svg.replace("<svg ", f'<svg x="{x}" y="46" width="{WIDTH}" height="{HEIGHT}" ', 1)


def header(x: int, title: str, names: tuple[str, ...]) -> str:
    parts = [f'<text class="title" x="{x + 46}" y="18">{title}</text>']
    for number, name in enumerate(names):
        at = x + 46 + 110 * number
        parts.append(f'<line class="line {name}" x1="{at}" x2="{at + 22}" y1="34" y2="34"/>')
        parts.append(f'<text x="{at + 28}" y="38">{name}</text>')
    return "".join(parts)


def means(points: Sequence[Mapping[str, Any]], what: str) -> Points:
    """(step, mean over the tasks) of one run. (pure)"""
    return tuple((float(point["step"]), float(point["metrics"]["mean"][what])) for point in points)


def series(points: list[dict[str, object]], name: str) -> Points:
    """(training seconds, value) of one run. (pure)"""
    found = []
    for point in points:
        metrics: dict[str, dict[str, float]] = point["metrics"]  # type: ignore[assignment]
        value = {
            "greedy": metrics["mean"]["accuracy"],
            "sampled": metrics["mean"]["sampled_accuracy"],
            "worked": sum(metrics[task]["worked_share"] for task in SHOWN) / len(SHOWN),
        }[name]
        found.append((float(point["training_s"]), value))  # type: ignore[arg-type]
    return tuple(found)


def length(points: list[dict[str, object]], task: str) -> Points:
    return tuple((float(p["training_s"]), p["metrics"][task]["mean_tokens"]) for p in points)  # type: ignore[arg-type, index]
