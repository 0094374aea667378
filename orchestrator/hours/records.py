"""What was predicted of each run, beside what it measured: `prediction.json` in the run, and its store."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.disk import bytes_below
from orchestrator.hours.prediction import Prediction, key_of
from orchestrator.judging import ProfileVerdict
from profiles.errors import LonghaulError
from profiles.metrics import PEAK_RSS
from state import durable
from state.layout import RunDir
from state.reader import Reader

LEAST_STEPS = 3
"""Fewer steps say little: the first one compiles."""
STEPS_READ = 200
RUNS_READ = 50
"""Newest runs in which a start looks for one like it."""


@dataclass(frozen=True)
class Outcome:
    """A run's prediction and what its steps took. measured_s: median; None before enough steps."""

    run: str
    prediction: Prediction
    measured_s: float | None
    steps: int
    disk_bytes: int
    ram_bytes: int | None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None if one of them is missing."""
        if self.measured_s is None or not self.prediction.step_s:
            return None
        return self.prediction.step_s / self.measured_s - 1


def keep(run: RunDir, prediction: Prediction) -> None:
    """Note what is predicted of a run that begins. A failure costs the note alone."""
    with suppress(LonghaulError, OSError):
        if not run.prediction.exists():
            durable.write_file(run.prediction, msgspec.json.encode(prediction))


def read(run: RunDir) -> Prediction | None:
    try:
        return msgspec.json.decode(run.prediction.read_bytes(), type=Prediction)
    except (OSError, msgspec.MsgspecError):
        return None


def noted(runs: Path) -> list[tuple[RunDir, Prediction]]:
    """Runs with a prediction, the newest first."""
    if not runs.is_dir():
        return []
    found = [(RunDir(path), one) for path in runs.iterdir() if (one := read(RunDir(path))) is not None]
    return sorted(found, key=lambda pair: -pair[1].at)


def outcomes(runs: Path) -> Iterator[Outcome]:
    """Each run with a prediction, the newest first."""
    for run, prediction in noted(runs):
        with suppress(LonghaulError):
            yield outcome_of(run, prediction)


def outcome_of(run: RunDir, prediction: Prediction) -> Outcome:
    """Raises LonghaulError if the store cannot be read."""
    with closing(Reader.open(run)) as reader:
        times = reader.step_seconds(STEPS_READ)
        newest = reader.steps(1)
    ram = newest[-1].metrics.get(PEAK_RSS.name) if newest else None
    kept = sum(bytes_below(path) for path in (run.checkpoints, run.ballast, *run.cycles.glob("*/rollouts")))
    median = statistics.median(times) if len(times) >= LEAST_STEPS else None
    return Outcome(run.name, prediction, median, len(times), kept, int(ram) if ram else None)


def measured_before(runs: Path, key: str, this: RunDir | None = None) -> tuple[float, str] | None:
    """Seconds of a step of the newest run on this machine whose steps do the same work. this: a run that goes on."""
    if this is not None and this.store.exists():
        with suppress(LonghaulError), closing(Reader.open(this)) as reader:
            times = reader.step_seconds(STEPS_READ)
            if len(times) >= LEAST_STEPS:
                return statistics.median(times), "measured in this run"
    for run, prediction in noted(runs)[:RUNS_READ]:
        if prediction.key != key or (this is not None and run.name == this.name):
            continue
        with suppress(LonghaulError), closing(Reader.open(run)) as reader:
            times = reader.step_seconds(STEPS_READ)
            if len(times) >= LEAST_STEPS:
                return statistics.median(times), f"measured here, run {run.name}"
    return None


def known_step(verdict: ProfileVerdict, run: RunDir, runs: Path) -> tuple[float, str] | None:
    """What this run, or one like it on this machine, has measured."""
    card = verdict.machine.card
    return measured_before(runs, key_of(verdict.profile, card.name if card else ""), run)
