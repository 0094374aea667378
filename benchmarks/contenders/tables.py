"""Reports as tables in Markdown. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

GIB = 1 << 30
Found = dict[str, Any]


def steps_table(reports: Sequence[Found]) -> str:
    """A row per contender: median seconds with minimum and maximum, then memory peaks in GiB."""
    heads = (
        "contender",
        "G",
        "step s",
        "rollout s",
        "score s",
        "train s",
        "tokens/s",
        "ms a decode step",
        "allocated",
        "reserved",
        "device",
        "host",
        "first step after s",
        "steps",
    )
    return table(heads, [row_of(one, len(heads)) for one in reports])


def row_of(one: Found, width: int) -> list[str]:
    start = [one["contender"], str(one["group_size"])]
    if not one["steps"]:
        return [*start, f"{one['status']}: {one['reason']}", *[""] * (width - 3)]
    rates, per_token = speeds(one)
    spans = [
        spread([step[name] for step in one["steps"] if name in step]) for name in ("step", "rollout", "score", "train")
    ]
    memory = [gib(one[key]) for key in ("allocated", "reserved", "on_device", "host")]
    if one.get("peaks"):
        memory[0] += f" ({', '.join(f'{name} {gib(peak)}' for name, peak in one['peaks'].items())})"
    cold = "" if one["cold_start_s"] is None else f"{one['cold_start_s']:.0f}"
    note = "" if one["status"] == "ok" else f", then {one['status']}: {one['reason']}"
    return [*start, *spans, spread(rates, 0), spread(per_token, 2), *memory, cold, f"{len(one['steps'])}{note}"]


def speeds(one: Found) -> tuple[list[float], list[float]]:
    """Tokens per second, and milliseconds per decode step, of each step with rollouts."""
    found = [
        (sampled["tokens"] / step["rollout"], step["rollout"] * 1000 / sampled["longest"])
        for step, sampled in zip(one["steps"], sampled_of(one), strict=True)
        if step.get("rollout")
    ]
    return [rate for rate, _ in found], [each for _, each in found]


def sampled_of(one: Found) -> list[dict[str, float]]:
    """Token counts per step. Older files have one count for all steps, the oldest without `longest` (equal rows)."""
    if "sampled" in one:
        return list(one["sampled"])
    tokens = one["tokens"]
    return [{"tokens": tokens, "longest": one.get("longest") or tokens / one["group_size"]}] * len(one["steps"])


def decode_table(reports: Sequence[Found]) -> str:
    """Rollouts alone, without a trainer."""
    heads = ("engine", "G", "rollout s", "tokens/s", "ms a decode step", "weights and cache GiB", "device GiB")
    rows = []
    for one in reports:
        start = [one["contender"].removeprefix("decode "), str(one["group_size"])]
        if not one["steps"]:
            rows.append([*start, f"{one['status']}: {one['reason']}", "", "", "", ""])
            continue
        seconds = [step["rollout"] for step in one["steps"]]
        rates, per_token = speeds(one)
        rows.append(
            [
                *start,
                spread(seconds),
                spread(rates, 0),
                spread(per_token, 2),
                gib(one["allocated"]),
                gib(one["on_device"]),
            ]
        )
    return table(heads, rows)


def time_table(report: Found) -> str:
    """Time of one window by kernel family."""
    if not report["tables"]:
        return f"{report['contender']} G={report['group_size']}: {report['status']}: {report['reason']}"
    parts = []
    for name, window in report["tables"].items():
        busy = window["busy_s"] or 1.0
        rows = [
            [family, f"{one['seconds'] * 1000:.1f}", f"{one['seconds'] / busy:.1%}", str(one["count"]), one["largest"]]
            for family, one in sorted(window["families"].items(), key=lambda item: -item[1]["seconds"])
        ]
        title = (
            f"{report['contender']} G={report['group_size']}, {name}: {window['wall_s'] * 1000:.1f} ms without the "
            f"profiler, {window['profiled_s'] * 1000:.1f} ms with it, {window['busy_s'] * 1000:.1f} ms in "
            f"{window['count']} kernels ({window['of']})"
        )
        parts.append(title + "\n\n" + table(("family", "ms", "share of busy time", "kernels", "largest"), rows))
        if window["of"] == "kernels of the GPU":
            calls = [[one["name"], f"{one['seconds'] * 1000:.1f}", str(one["count"])] for one in window["launching"]]
            parts.append(table(("the processor is busy with", "ms", "calls"), calls))
    return "\n\n".join(parts)


MOST_APART = {", mean": 0.02, ", largest": 0.5}
"""Allowed difference of log-probs from the reference in nats, by the suffix of a figure's name."""
LEAST_COSINE = 0.999
"""Smallest allowed cosine of the adapter's whole gradient with the reference's."""


def limit_of(figure: str, value: float) -> str:
    """The limit of a figure of `--check`, and whether it is missed; empty without a limit."""
    most = next((limit for end, limit in MOST_APART.items() if figure.endswith(end)), None)
    if most is not None:
        return f"at most {most:g}{': missed' if value > most else ''}"
    if figure == "gradient cosine":
        return f"at least {LEAST_COSINE:g}{': missed' if value < LEAST_COSINE else ''}"
    return ""


def check_table(reports: Sequence[Found]) -> str:
    """Differences from the float32 reference in nats, and cosines of gradients, with their limits."""
    rows = []
    for one in reports:
        start = [one["contender"], str(one["group_size"])]
        told = one["metrics"].items() if one["status"] == "ok" else [(one["status"], one["reason"])]
        for key, value in told:
            cells = [f"{value:.6g}", limit_of(key, value)] if isinstance(value, float) else [str(value), ""]
            rows.append([*start, key, *cells])
    return table(("contender", "G", "figure", "value", "limit"), rows)


def ratios(reports: Sequence[Found], ours: str = "native") -> str:
    """How many of our steps take the time of one of another contender's, by group size; empty if not comparable."""
    lines = []
    for size in sorted({one["group_size"] for one in reports}):
        steps: dict[str, list[float]] = {}
        for one in reports:
            if one["steps"] and one["group_size"] == size:
                steps.setdefault(one["contender"], []).extend(step["step"] for step in one["steps"])
        lines += [
            f"G={size}: {ours} makes {median(seconds) / median(steps[ours]):.1f} steps in the time of one of {name}"
            for name, seconds in steps.items()
            if ours in steps and name != ours
        ]
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, with minimum and maximum in brackets."""
    if not values:
        return "-"
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def gib(number: int | None) -> str:
    return "-" if number is None else f"{number / GIB:.2f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[str(cell).replace("|", "/") for cell in row] for row in rows]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *(f"| {' | '.join(row)} |" for row in cells)]
    return "\n".join(lines)
