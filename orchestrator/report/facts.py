"""Reads the facts of a report. Thins out series, so that a run of a million steps fits on a page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from profiles.worker_kinds import kind_of_stored
from state.evaluations import EvaluationDir, SuiteFacts, read_evaluations
from state.history import CheckpointFacts, CycleFacts, History, StepFacts, ValidationFacts
from state.layout import RunDir
from state.reader import Reader

STEPS_SHOWN = 1200
VALIDATIONS_SHOWN = 1200
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
    steps: tuple[StepFacts, ...]
    stride: int
    """`steps` holds every Nth step."""
    validations: tuple[ValidationFacts, ...]
    cycles: tuple[CycleFacts, ...]
    """Newest first, as are the following."""
    checkpoints: tuple[CheckpointFacts, ...]
    failures: tuple[Failure, ...]
    examples: tuple[dict[str, Any], ...]
    evaluations: tuple[SuiteFacts, ...] = ()

    @property
    def finds_tasks(self) -> bool:
        """Whether this run finds its own tasks (self-play) instead of reading a problem file."""
        return kind_of_stored(self.profile).finds_tasks


def read_facts(run: RunDir) -> Facts:
    reader = Reader.open(run)
    try:
        history = reader.history()
        steps, stride = thinned_steps(reader)
        current = () if history.current is None or history.current in history.recent else (history.current,)
        return Facts(
            history=history,
            profile=json.loads(reader.profile_json()),
            steps=steps,
            stride=stride,
            validations=thinned(reader.validations(1 << 20), VALIDATIONS_SHOWN),
            cycles=tuple(reversed((*history.recent, *current)))[:ROWS_SHOWN],
            checkpoints=tuple(reversed(reader.checkpoints()))[:ROWS_SHOWN],
            failures=failed_attempts(reader),
            examples=tuple(reader.examples(EXAMPLES_SHOWN)),
            evaluations=read_evaluations(EvaluationDir.of(run), ROWS_SHOWN),
        )
    finally:
        reader.close()


def thinned(facts: tuple[ValidationFacts, ...], most: int) -> tuple[ValidationFacts, ...]:
    """At most `most` evenly spaced validations, including the first and the last. (pure)"""
    if len(facts) <= most:
        return facts
    return tuple(facts[number * (len(facts) - 1) // (most - 1)] for number in range(most))


def thinned_steps(reader: Reader) -> tuple[tuple[StepFacts, ...], int]:
    """(steps, stride). Looks up single steps by index, so that a million rows are never read."""
    last = reader.connection.execute("SELECT max(step) FROM steps WHERE trained=1").fetchone()[0] or 0
    stride = max(1, -(-last // STEPS_SHOWN))
    steps = []
    for step in range(last % stride or stride, last + 1, stride):
        row = reader.connection.execute(
            "SELECT cycle, coalesce(seconds, 0), coalesce(reward, 0), metrics FROM steps WHERE trained=1 AND step=?",
            [step],
        ).fetchone()
        if row is not None:
            steps.append(StepFacts(step, row[0], row[1], row[2], json.loads(row[3])))
    return tuple(steps), stride


def failed_attempts(reader: Reader) -> tuple[Failure, ...]:
    """The newest attempts that failed or were lost, newest first."""
    rows = reader.connection.execute(
        "SELECT coalesce(ended_at, started_at), cycle, role, attempt, step_reached, failure, exit_code, message"
        " FROM attempts WHERE state IN ('failed', 'lost') ORDER BY rowid DESC LIMIT ?",
        [ROWS_SHOWN],
    ).fetchall()
    return tuple(Failure(*row) for row in rows)
