"""What `plan --history` shows: predictions beside what was measured. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.display.wording import harmless, size
from orchestrator.hours.prediction import seconds
from orchestrator.hours.records import Outcome

COLUMNS = ("run", "steps", "predicted", "measured", "error", "disk planned, used", "RAM planned, worker's", "known by")


def history_text(found: Sequence[Outcome]) -> str:
    """A table, newest run first."""
    if not found:
        return "no run here has a prediction; a run notes one when it begins\n"
    rows = [COLUMNS, *(_row(one) for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def _row(one: Outcome) -> tuple[str, ...]:
    predicted, measured = one.prediction.step_s, one.measured_s
    return (
        harmless(one.run),
        str(one.steps),
        seconds(predicted) if predicted else "-",
        seconds(measured) if measured else "-",
        f"{one.error:+.0%}" if one.error is not None else "-",
        f"{size(one.prediction.disk_bytes)}, {size(one.disk_bytes)}",
        f"{size(one.prediction.ram_bytes)}, {size(one.ram_bytes)}",
        harmless(one.prediction.basis),
    )


def history_facts(one: Outcome) -> Mapping[str, Any]:
    """The same for a program."""
    return {
        "run": one.run,
        "steps": one.steps,
        "predicted_s": one.prediction.step_s,
        "measured_s": one.measured_s,
        "error": one.error,
        "basis": one.prediction.basis,
        "disk_planned": one.prediction.disk_bytes,
        "disk_used": one.disk_bytes,
        "ram_planned": one.prediction.ram_bytes,
        "ram_worker": one.ram_bytes,
    }
