"""The display of a GRPO run: reading progress and share of right answers, nothing of self-play."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.commands import status
from orchestrator.display.arrange import arrange
from orchestrator.display.plain import phase_line, step_line
from orchestrator.display.play_tiles import data, play, signals
from orchestrator.display.reading import reading_of
from orchestrator.display.summary import summary
from orchestrator.display.tiles import scores, small
from orchestrator.display.view import View, build_view
from orchestrator.report.charts import step_charts
from orchestrator.report.page import render
from profiles.schema import Run
from state.history import CycleFacts, StepFacts, ValidationFacts
from state.states import CycleState
from tests.builders import a_history, a_live, a_profile, a_series, validation_facts

METRICS = {
    "reward": 0.4, "reward/correct": 0.35, "reward/format": 0.05, "accuracy": 0.35, "group_spread": 0.3, "kl": 0.01,
    "skipped_share": 0.25, "kept_tokens": 0.5, "entropy": 1.2, "clip_low": 0.01, "clip_high": 0.02, "tokens_mean": 40.0,
    "tokens_max": 64.0, "answered": 0.9, "loss": 0.1, "grad_norm": 0.3, "learning_rate": 1e-5, "problems": 1000.0,
}  # fmt: skip
SKIPPED = {name: METRICS[name] for name in ("reward", "accuracy", "group_spread", "skipped_share", "problems")}
"""A step without an update has no loss, no entropy, no clip fractions."""


def steps(last: int = 54, **more: float) -> list[StepFacts]:
    told = {step: SKIPPED if step in (3, 54) else METRICS for step in range(1, last + 1)}
    return [StepFacts(step, 1, 1.0, told[step] | {"problems_drawn": 40.0 * step} | more) for step in told]


def a_view(facts: list[StepFacts] | None = None) -> View:
    profile = a_profile(run=Run(worker="grpo"))
    found = steps() if facts is None else facts
    return build_view(a_history(examples=0), a_live(), found, [validation_facts(0, suite="words")], [], profile)


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"problems_drawn": 0.0}, "row 0 of 1,000, epoch 1"),
        ({"problems_drawn": 16.0}, "row 16 of 1,000, epoch 1"),
        ({"problems_drawn": 1000.0}, "row 1,000 of 1,000, epoch 1"),
        ({"problems_drawn": 1001.0}, "row 1 of 1,000, epoch 2"),
        ({"problems_drawn": 2160.0}, "row 160 of 1,000, epoch 3"),
        ({"problems_drawn": 60.0, "stage": 1.0, "stages": 2.0}, "stage 1 of 2, 60 drawn of 1,000"),
        ({"problems_drawn": 60.0, "stage": 3.0, "stages": 2.0}, "all stages, 60 drawn of 1,000"),
    ],
)
def test_the_place_in_the_file_is_told_by_row_and_epoch_or_by_stage(more: dict[str, float], place: str) -> None:
    found = reading_of([StepFacts(1, 1, 1.0, METRICS | more)])
    assert found is not None and found.place == place


def test_accuracy_is_that_of_the_last_20_steps() -> None:
    early, late = steps(30, accuracy=0.0), steps(10, accuracy=0.5)
    found = reading_of([*early, *late])
    assert found is not None and found.right == "25 % right, last 20 steps"


@pytest.mark.parametrize("metrics", [{}, {"accuracy": 0.5}, {"accuracy": 0.5, "problems": 0.0}])
def test_a_run_that_reads_no_file_has_no_place_in_one(metrics: dict[str, float]) -> None:
    assert reading_of([StepFacts(1, 1, 1.0, metrics)]) is None


def test_lines_tell_accuracy_and_what_was_skipped_in_place_of_tasks_found() -> None:
    view = a_view()
    assert phase_line(view).endswith("GRPO, 20 steps from step 41")
    line = step_line(view)
    assert "accuracy 35 %" in line and "skipped share 25 %" in line and "kept tokens 50 %" in line
    assert "row 160 of 1,000, epoch 3" in line
    assert "tasks found" not in line


def test_before_the_first_step_nothing_is_said_of_buffers() -> None:
    seed = a_history(examples=0, current=CycleFacts(0, "seed", CycleState.TRAINING, 1, 1), first_validation=None)
    view = build_view(seed, a_live(), [], [], [], a_profile(run=Run(worker="grpo")))
    shown = "\n".join(text.plain for tile in (small, play, signals, data, scores) for text in tile(view, 60, 20))
    assert "before the first step" in shown and "no problem read yet" in shown
    assert "buffer" not in shown and "seed" not in shown


def test_tiles_show_groups_and_update_each_signal_once() -> None:
    view = a_view()
    lines = [text.plain for tile in (play, signals, data) for text in tile(view, 60, 20)]
    names = ("accuracy", "format", "group spread", "skipped share", "kept tokens", "kl", "entropy", "learning rate")
    for name in names:
        assert sum(line.startswith(name) for line in lines) == 1
    assert lines[-2:] == ["row 160 of 1,000, epoch 3", "35 % right, last 20 steps"]


def test_what_a_profile_does_without_has_no_line() -> None:
    off = {"kl": 0.0, "kept_tokens": 1.0, "truncated": 0.0, "reward/format": 0.0}
    view = a_view(steps(20, **off))
    lines = [text.plain for tile in (play, signals) for text in tile(view, 60, 20)]
    assert not [line for line in lines if line.startswith(("kl", "kept", "truncated", "format"))]
    assert "kept tokens" not in step_line(view)


def test_a_step_without_an_update_takes_no_line_away() -> None:
    assert "entropy" in [curve.name for curve in a_view().signals]


def test_a_validation_that_draws_no_samples_has_no_columns_for_them() -> None:
    metrics = {"mean": {"accuracy": 0.4, "n": 200, "correct": 80}, "maths": {"accuracy": 0.4, "n": 200, "correct": 80}}
    facts = ValidationFacts(0, 0, "gsm8k", 0.4, 80, 200, metrics)
    view = build_view(a_history(first_validation=facts), a_live(), steps(), [facts], [], a_profile())
    shown = "\n".join(text.plain for text in scores(view, 90, 9))
    assert "greedy" in shown and "?" not in shown and "sampled" not in shown and "tokens" not in shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 45), (200, 70), (59, 10)])
def test_without_tasks_to_show_the_tiles_still_fill_the_terminal(width: int, height: int) -> None:
    bands = arrange(width, height, has_examples=False)
    places = [place for band in bands for column in band.columns for place in column]
    assert "example" not in [place.tile for place in places]
    assert sum(sum(place.height for place in band.columns[0]) for band in bands) == height
    assert all(len({sum(place.height for place in column) for column in band.columns}) == 1 for band in bands)


def test_the_summary_tells_the_place_and_counts_no_tasks() -> None:
    text = summary(a_history(examples=0), steps(), [validation_facts(0)], a_profile(run=Run(worker="grpo")))
    assert "distinct tasks" not in text
    assert "problems   row 160 of 1,000, epoch 3; 35 % right, last 20 steps" in text


STATUS: dict[str, Any] = {
    "run": "g", "profile": "p", "phase": "train", "phases": ["seed", "train"], "state": "stopped", "cycle": 1,
    "step": 54, "steps_total": None,
    "head": None, "validation": None, "other_suites": {}, "master_pid": None, "worker_pid": None, "stop_reason": "",
    "exactness": "x", "exactness_reason": "y", "examples": 0, "training_s": 9.0, "heartbeat_age_s": 1.0, "failures": 0,
    "evaluations": [], "path": "", "time": None, "jobs": [], "nodes_left_out": [], "stagnation": "",
}  # fmt: skip


def test_status_tells_rows_and_accuracy_and_of_self_play_the_tasks_found() -> None:
    told = status.problems(reading_of(steps()))
    assert told is not None and (told["problems"], told["drawn"], told["epoch"]) == (1000, 2160, 3)
    text = status.render(STATUS | {"problems": told, "finds_tasks": False})
    assert "work        9.0 s of training, row 160 of 1,000, epoch 3; 35 % right, last 20 steps\n" in text
    assert "distinct" not in text
    assert "no problem read yet" in status.render(STATUS | {"problems": None, "finds_tasks": False})
    assert "0 distinct tasks found" in status.render(STATUS | {"problems": None, "finds_tasks": True})


def report_facts(worker: str) -> Any:
    from orchestrator.report.facts import Facts

    return Facts(
        history=a_history(examples=0), profile={"name": "p", "run": {"worker": worker}},
        newest=tuple(steps()),
        series=a_series(steps()), validations=(),
        cycles=(CycleFacts(1, "train", CycleState.TRAINING, 1, 61),), checkpoints=(), failures=(),
        examples=(),
    )  # fmt: skip


def test_the_report_draws_groups_policy_and_update_and_leaves_steps_out_that_had_none() -> None:
    charts = {chart.title: chart for chart in step_charts(report_facts("grpo").series)}
    assert list(charts) == ["Accuracy in training", "Groups", "Policy", "Update", "Length", "Step time"]
    entropy = charts["Policy"].lines[0]
    assert len(entropy.points) == 52 and 3 not in [step for step, _ in entropy.points]


def test_the_report_of_a_file_of_problems_has_no_tasks_found() -> None:
    text = render(report_facts("grpo"))
    assert "row 160 of 1,000, epoch 3" in text and "35 %" in text
    assert "self-play" not in text and "distinct tasks" not in text and "new tasks" not in text
    assert "distinct tasks found" in render(report_facts("azr"))
