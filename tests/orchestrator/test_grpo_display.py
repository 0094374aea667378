"""A GRPO run as it is shown: nothing of tasks, roles and buffers, which it has not."""

from __future__ import annotations

from orchestrator.display.plain import phase_line, step_line
from orchestrator.display.play_tiles import data, example, play, signals
from orchestrator.display.summary import summary
from orchestrator.display.view import View, build_view
from orchestrator.report.page import step_charts
from profiles.schema import Run
from state.history import StepFacts
from tests.builders import a_history, a_live, a_profile, validation_facts

METRICS = {
    "reward": 0.4, "reward/correct": 0.35, "reward/format": 0.05, "accuracy": 0.35, "group_spread": 0.3, "kl": 0.01,
    "skipped_share": 0.25, "kept_tokens": 0.5, "entropy": 1.2, "clip_low": 0.01, "clip_high": 0.02, "tokens_mean": 40.0,
    "tokens_max": 64.0, "answered": 0.9, "loss": 0.1, "grad_norm": 0.3, "learning_rate": 1e-5,
}  # fmt: skip
SKIPPED = {name: METRICS[name] for name in ("reward", "accuracy", "group_spread", "skipped_share")}
"""A step without an update has no loss, no entropy, no clip fractions."""


def steps() -> list[StepFacts]:
    return [StepFacts(step, 1, 1.0, 0.4, SKIPPED if step == 3 else METRICS) for step in range(1, 55)]


def a_view() -> View:
    profile = a_profile(run=Run(worker="grpo"))
    return build_view(a_history(examples=0), a_live(), steps(), [validation_facts(0, suite="words")], [], profile)


def test_lines_tell_accuracy_and_what_was_skipped_in_place_of_tasks_found() -> None:
    view = a_view()
    assert phase_line(view).endswith("GRPO, 20 steps from step 41")
    line = step_line(view)
    assert "accuracy 35 %" in line and "skipped share 25 %" in line and "kept tokens 50 %" in line
    assert "tasks found" not in line


def test_tiles_show_the_parts_of_the_reward_and_the_signals_of_grpo() -> None:
    view = a_view()
    shown = "\n".join(text.plain for tile in (play, signals, data, example) for text in tile(view, 60, 20))
    for name in ("correct", "format", "accuracy", "group spread", "skipped share", "kept tokens", "kl"):
        assert name in shown
    assert "buffers" not in shown and "no task found" not in shown


def test_the_summary_counts_no_tasks() -> None:
    text = summary(a_history(examples=0), steps(), [validation_facts(0)], a_profile(run=Run(worker="grpo")))
    assert "distinct tasks" not in text


def test_the_report_draws_groups_policy_and_update_and_leaves_steps_out_that_had_none() -> None:
    from orchestrator.report.facts import Facts

    facts = Facts.__new__(Facts)
    object.__setattr__(facts, "steps", steps())
    object.__setattr__(facts, "stride", 1)
    charts = {chart.title: chart for chart in step_charts(facts)}
    assert list(charts) == ["Accuracy in training", "Groups", "Policy", "Update", "Length", "Step time"]
    entropy = charts["Policy"].lines[0]
    assert len(entropy.points) == 53 and 3 not in [step for step, _ in entropy.points]
