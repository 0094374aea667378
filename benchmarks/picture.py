"""Draws the README's picture: `learning --json curves.json`, then `picture curves.json OUT.svg`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from orchestrator.report.svg import HEIGHT, WIDTH, Chart, Line, Points, draw
from profiles.task_kinds import LOOKS, SHOWN

STYLE = """
text { font: 11px system-ui, sans-serif; fill: #667; } .end { text-anchor: end; } .mid { text-anchor: middle; }
.title { font-size: 13px; font-weight: 600; fill: #334; } .grid { stroke: #dde; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; opacity: .85; }
.greedy { stroke: #2563eb; } .sampled { stroke: #16a34a; } .worked { stroke: #d97706; stroke-dasharray: 2 3.5; }
rect { fill: #fff; }
""" + "".join(f".{task} {{ stroke: {LOOKS[task].light}; }}\n" for task in SHOWN)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks picture", description=__doc__)
    parser.add_argument("curves", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args(arguments)
    curves = json.loads(args.curves.read_text())
    args.out.write_text(picture(curves))
    print(f"wrote {args.out}: {len(curves)} runs")
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
    width, height = 2 * WIDTH + 20, HEIGHT + 46
    body = "".join(
        header(n * (WIDTH + 20), title, names) + placed(draw(chart, str(n)), n * (WIDTH + 20))
        for n, (chart, (title, names)) in enumerate(zip((left, right), titles, strict=True))
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
