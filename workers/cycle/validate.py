"""Scores one committed checkpoint on held-out problems. Reads the checkpoint, writes metrics, changes nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from profiles.metrics import MEAN_REWARD, SAMPLED_REWARD
from state import event_kinds
from state.crash import crash_point
from workers.contract import Outcome, Result, TaskAnswers
from workers.cycle.saving import open_head, versions
from workers.intervals import wilson
from workers.runtime import Attempt

log = logging.getLogger("worker")

Metrics = dict[str, dict[str, float]]
"""task -> name -> value; `n` and `correct` are counts of greedy answers, `low` and `high` Wilson's 95 % interval."""


@dataclass(frozen=True)
class Scored:
    """One suite's results for a checkpoint."""

    metrics: Metrics
    answers: dict[str, TaskAnswers]
    """By task."""
    available: int
    """Problems in the suite; it may have asked fewer."""
    seconds: float
    """Seconds for asking and judging, without loading the model."""


Suite = Callable[[Path], Scored]
"""Checkpoint directory -> its scores."""


def validate(attempt: Attempt, suites: Mapping[str, Suite]) -> Result:
    """Run all the profile's suites on the spec's checkpoint. Stops between suites if asked to."""
    spec = attempt.spec
    if spec.head is None:
        raise LonghaulError(
            "a validation was asked for without a checkpoint",
            kept="everything",
            next_command="python -m orchestrator status",
            exit_code=ExitCode.SPEC,
        )
    attempt.at(spec.head.step, "loading")
    attempt.event(event_kinds.STARTED, versions=versions())
    opened = open_head(attempt.run, spec.run_id, spec.head)
    assert opened is not None
    head, _ = opened
    crash_point("worker.validating")
    scores: dict[str, Metrics] = {}
    answers: dict[str, dict[str, TaskAnswers]] = {}
    for name in attempt.profile.validation.suites:
        if attempt.control.requests.stop.is_set():
            return _result(attempt, Outcome.STOPPED, scores, answers)
        with attempt.stage("validate"):
            scored = suites[name](head)
        scores[name] = {**scored.metrics, "mean": mean_over_tasks(scored.metrics)}
        answers[name] = scored.answers
        attempt.event(
            event_kinds.VALIDATION, suite=name, metrics=scores[name], seconds=scored.seconds, available=scored.available
        )
        log.info("suite %s: accuracy %.3f at step %d", name, scores[name]["mean"]["accuracy"], spec.head.step)
    return _result(attempt, Outcome.DONE, scores, answers)


def mean_over_tasks(tasks: Metrics) -> dict[str, float]:
    """Unweighted mean of the tasks' accuracies, and of their rewards where there are some; the interval is Wilson's for
    all answers together. (pure)"""
    n = sum(int(one["n"]) for one in tasks.values())
    correct = sum(int(one["correct"]) for one in tasks.values())
    low, high = wilson(correct, n)
    mean = {name: sum(one[name] for one in tasks.values()) / len(tasks) for name in ("accuracy", "sampled_accuracy")}
    for name in (MEAN_REWARD.name, SAMPLED_REWARD.name):
        if found := [one[name] for one in tasks.values() if name in one]:
            mean[name] = sum(found) / len(found)
    return {"n": n, "correct": correct, "low": low, "high": high, **mean}


def _result(
    attempt: Attempt, outcome: Outcome, scores: Mapping[str, Metrics], answers: Mapping[str, dict[str, TaskAnswers]]
) -> Result:
    spec = attempt.spec
    return Result(
        token=spec.token,
        role="validate",
        outcome=outcome,
        exit_code=ExitCode.OK,
        last_step=spec.head.step if spec.head else 0,
        checkpoint=spec.head,
        validation=dict(scores),
        answers=dict(answers),
    )
