"""Formats numbers and foreign text for reading. (pure)"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from pathlib import Path

from profiles.harmless import harmless as harmless
from profiles.harmless import harmless_lines as harmless_lines
from profiles.task_kinds import LOOKS

TASK_NAMES = {**{task: look.title for task, look in LOOKS.items()}, "maths": "word problems", "mean": "mean"}

DEFAULT_RUNS = Path("runs")
"""Folder of all runs, below the working directory."""
_COMMAND = re.compile(r"(python -m orchestrator [a-z]+)\b(?! --help)")


def duration(seconds: float | None) -> str:
    """`0.8 s`, `42 s`, `3 m 05 s`, `2 h 10 m`, `3 d 04 h`; `?` if unknown. Never negative."""
    if seconds is None or seconds != seconds or seconds == float("inf"):
        return "?"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def go_on(name: str, phases: Collection[str], *, is_seeded: bool) -> str:
    """The command that resumes an ended run. is_seeded: the seed phase has ended with a checkpoint."""
    is_all_done = is_seeded and "train" not in phases
    return f"python -m orchestrator run --run {name}" + (" --full-pipeline" if is_all_done else "")


def not_text(text: str) -> str:
    """Up to 60 characters around the first invalid byte of `text` (surrogateescape); empty if it is valid. (pure)"""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return harmless(text[max(0, error.start - 30) :][:60])
    return ""


def among(runs: Path, text: str) -> str:
    """Add `--runs` to each command in `text`, unless the folder of all runs is ./runs."""
    if runs == DEFAULT_RUNS:
        return text
    return _COMMAND.sub(lambda found: f"{found[1]} --runs {shlex.quote(str(runs))}", text)


def size(num_bytes: int | None) -> str:
    """`512 kB`, `48 MB`, `1.9 GB` (powers of 1,000), `?` if unknown."""
    if num_bytes is None:
        return "?"
    value = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def count(number: float | None) -> str:
    """`7`, `950`, `12,400`; `?` if unknown."""
    return "?" if number is None else f"{number:,.0f}"


def percent(share: float | None) -> str:
    """`61 %`; `?` if unknown."""
    return "?" if share is None else f"{share * 100:.0f} %"


def score(accuracy: float | None) -> str:
    """`0.753`; `?` if unknown."""
    return "?" if accuracy is None else f"{accuracy:.3f}"


def points(change: float | None) -> str:
    """A change of a share in percentage points: `+52`, `-3`, `±0`; empty if unknown."""
    if change is None:
        return ""
    rounded = round(change * 100)
    return f"{rounded:+d}" if rounded else "±0"


def pairs(input_: str, output: str) -> list[tuple[str, str]]:
    """The (input, output) pairs of a task, made harmless. An induction task has one pair per line."""
    inputs, outputs = input_.split("\n"), output.split("\n")
    if len(inputs) != len(outputs):
        inputs, outputs = [input_], [output]
    return [(harmless(given), harmless(wanted)) for given, wanted in zip(inputs, outputs, strict=True)]
