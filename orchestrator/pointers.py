"""Writes latest.json and best.json in the run directory, which point users and other programs to checkpoints.

Both are derived from the store, and rewritten after each commit and at each start. A kill between a commit and these
files does no harm. Our own code never reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from state import durable
from state.history import CheckpointFacts
from state.layout import RunDir
from state.reader import Reader


def publish(run: RunDir, reader: Reader) -> None:
    """Update both files; an unchanged file is not rewritten. Raises LonghaulError (DISK)."""
    history, best = reader.history(), best_of(reader)
    _write(run.latest, None if history.head is None else _pointer(history.run_id, history.head))
    suite = history.first_validation.suite if history.first_validation is not None else ""
    if best is None or (validation := reader.validation_of(best.checkpoint_id, suite)) is None:
        return _write(run.best, None)
    scored = {
        "suite": validation.suite,
        "accuracy": validation.accuracy,
        "correct": validation.correct,
        "n": validation.n,
    }
    return _write(run.best, _pointer(history.run_id, best) | scored)


def best_of(reader: Reader) -> CheckpointFacts | None:
    """The kept checkpoint with the highest accuracy on the run's first suite; the earlier wins a tie."""
    first = reader.history().first_validation
    best = reader.best_checkpoints().get(first.suite) if first is not None else None
    return reader.checkpoint(best) if best is not None else None


def _pointer(run_id: str, facts: CheckpointFacts) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "checkpoint": facts.path,
        "step": facts.step,
        "cycle": facts.cycle,
        "checkpoint_id": facts.checkpoint_id,
        "digest": facts.digest,
    }


def _write(path: Path, content: dict[str, Any] | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
        return
    data = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    try:
        if path.read_bytes() == data:
            return
    except OSError:
        pass
    durable.write_file(path, data)
