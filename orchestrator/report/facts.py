"""Reads the facts of a report. Thins out series, so that a run of a million steps fits on a page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orchestrator.report.charts import charted
from profiles.worker_kinds import kind_of_stored
from state import event_kinds
from state.cycle_times import CycleTime
from state.evaluations import EvaluationDir, SuiteFacts, read_evaluations
from state.history import CheckpointFacts, CycleFacts, History, StepFacts, ValidationFacts
from state.layout import RunDir
from state.reader import Reader
from state.series import Thinned

POINTS_SHOWN = 400
"""Points of a curve: more than a chart is wide on a phone, and a report of a million steps stays small."""
NEWEST_STEPS = 100
ROWS_SHOWN = 60
"""Newest rows shown in each table."""
EXAMPLES_SHOWN = 12


@dataclass(frozen=True)
class Failure:
    """An attempt that failed or was lost. at: UTC seconds. message: untrusted text from the worker."""

    at: float
    cycle: int
    role: str
    attempt: int
    step_reached: int
    failure: str
    exit_code: int | None
    message: str


@dataclass(frozen=True)
class Facts:
    history: History
    profile: dict[str, Any]
    newest: tuple[StepFacts, ...]
    """The last steps, oldest first."""
    series: Thinned
    """Of all steps, what the charts show."""
    validations: tuple[ValidationFacts, ...]
    cycles: tuple[CycleFacts, ...]
    """Newest first, as are the following."""
    checkpoints: tuple[CheckpointFacts, ...]
    failures: tuple[Failure, ...]
    examples: tuple[dict[str, Any], ...]
    evaluations: tuple[SuiteFacts, ...] = ()
    validating_s: float = 0.0
    """Of all validations."""
    times: tuple[CycleTime, ...] = ()
    """Of the newest cycles, oldest first."""

    @property
    def finds_tasks(self) -> bool:
        """Whether this run finds its own tasks (self-play) instead of reading a problem file."""
        return kind_of_stored(self.profile).finds_tasks


def read_facts(run: RunDir) -> Facts:
    reader = Reader.open(run)
    try:
        history = reader.history()
        current = () if history.current is None or history.current in history.recent else (history.current,)
        return Facts(
            history=history,
            profile=json.loads(reader.profile_json()),
            newest=reader.steps(NEWEST_STEPS),
            series=reader.series(charted(reader.metric_names()), POINTS_SHOWN),
            validations=reader.thinned_validations(POINTS_SHOWN),
            validating_s=validating_s(reader),
            cycles=tuple(reversed((*history.recent, *current)))[:ROWS_SHOWN],
            checkpoints=tuple(reversed(reader.checkpoints()))[:ROWS_SHOWN],
            failures=failed_attempts(reader),
            examples=tuple(reader.examples(EXAMPLES_SHOWN)),
            evaluations=read_evaluations(EvaluationDir.of(run), ROWS_SHOWN),
            times=tuple(reader.cycle_times()),
        )
    finally:
        reader.close()


def validating_s(reader: Reader) -> float:
    """Seconds of all validations, as their workers measured them."""
    rows = reader.connection.execute(
        "SELECT total(json_extract(payload, '$.seconds')) FROM events WHERE role='validate' AND type=?",
        [event_kinds.VALIDATION.name],
    ).fetchone()
    return float(rows[0])


def failed_attempts(reader: Reader) -> tuple[Failure, ...]:
    """The newest attempts that failed or were lost, newest first."""
    rows = reader.connection.execute(
        "SELECT coalesce(ended_at, started_at), cycle, role, attempt, step_reached, failure, exit_code, message"
        " FROM attempts WHERE state IN ('failed', 'lost') ORDER BY rowid DESC LIMIT ?",
        [ROWS_SHOWN],
    ).fetchall()
    return tuple(Failure(*row) for row in rows)
