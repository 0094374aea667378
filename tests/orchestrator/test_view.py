"""View: what is shown follows from the facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.display.plain import step_line
from orchestrator.display.view import build_view, in_order
from state.history import CycleFacts, EventFacts
from state.states import CycleState, RunState
from tests.builders import a_history, a_live, a_profile, a_view, step_facts, validation_facts


def view_of(history=None, steps=(), validations=(), events=(), **live):
    return build_view(history or a_history(), a_live(**live), steps, validations, events, a_profile())


@pytest.mark.parametrize(
    ("history", "live", "phase"),
    [
        pytest.param(a_history(), {}, "self-play", id="training is self-play"),
        pytest.param(a_history(), {"role": "validate"}, "validating", id="a validation worker validates"),
        pytest.param(a_history(), {"waiting_until": 130.0}, "waiting", id="back-off is waiting"),
        pytest.param(
            a_history(current=CycleFacts(0, "seed", CycleState.TRAINING, 1, 1)), {}, "seeding", id="cycle 0 seeds"
        ),
        pytest.param(a_history(state=RunState.STAGNANT), {}, "stagnant", id="a run that has ended says how"),
    ],
)
def test_the_phase_in_words(history, live, phase) -> None:
    assert view_of(history, **live).phase == phase


def test_progress_counts_steps_of_this_cycle_also_beyond_the_head() -> None:
    view = view_of(steps=[step_facts(step, seconds=2.0) for step in range(41, 55)])
    assert (view.step, view.step_in_cycle, view.steps_in_cycle) == (54, 14, 20)


@pytest.mark.parametrize(
    ("started", "left"),
    [
        pytest.param(100.0, 12.0, id="six steps of two seconds are left"),
        pytest.param(99.5, 11.5, id="less what the step in progress has done"),
        pytest.param(90.0, 10.0, id="a slow step never takes more than itself off"),
        pytest.param(None, 12.0, id="before the step begins"),
    ],
)
def test_time_left_of_the_cycle(started, left) -> None:
    view = view_of(steps=[step_facts(s, seconds=2.0) for s in range(41, 55)], step_started=started)
    assert view.cycle_left_s == pytest.approx(left)


def test_the_usual_time_of_a_step_is_the_median_of_the_last_twenty_that_were_timed() -> None:
    seconds = [9.0] * 30 + [1.0] * 10 + [0.0] * 5 + [2.0] * 10
    view = view_of(steps=[step_facts(number, seconds=each) for number, each in enumerate(seconds, 1)])
    assert view.step_median_s == 2.0
    assert view_of().step_median_s is None


def test_nothing_is_left_of_a_cycle_that_is_done() -> None:
    assert view_of(steps=[step_facts(s, seconds=2.0) for s in range(41, 61)]).cycle_left_s is None


def test_tasks_found_since_the_head_count_at_once() -> None:
    """The head is of step 50; a cycle of large steps takes hours."""
    view = view_of(steps=[step_facts(step, new_examples=7) for step in range(49, 54)])
    assert view.examples == 1240 + 3 * 7


def test_a_new_run_has_nothing_to_show_and_does_not_fail() -> None:
    view = view_of(a_history(head=None, current=None, first_validation=None))
    assert (view.step, view.steps_in_cycle, view.scores, view.rewards, view.cycle_left_s) == (0, 0, (), (), None)


def test_steps_that_a_dead_attempt_did_beyond_its_successor_are_not_shown() -> None:
    done = [step_facts(step, reward=float(step)) for step in (10, 11, 12, 13, 11)]
    assert [facts.step for facts in in_order(done)] == [10, 11]


def test_rewards_come_by_role_and_task() -> None:
    view = view_of(steps=[step_facts(1), step_facts(2)])
    assert [(curve.role, curve.task) for curve in view.rewards] == [
        *(("propose", task) for task in ("ded", "abd", "ind")),
        *(("solve", task) for task in ("ded", "abd", "ind")),
    ]
    assert [curve.task for curve in view.buffers] == ["ded", "abd", "ind"]
    assert {curve.name for curve in view.signals} >= {"entropy", "loss", "accept_rate", "learning_rate"}


def test_a_step_without_judged_rollouts_has_no_reward() -> None:
    assert view_of(steps=[step_facts(1, reward=0.5)]).last_reward == 0.5
    view = view_of(steps=[step_facts(1, reward=0.5), step_facts(2, tokens=500.0)])
    assert view.last_reward is None and "reward" not in step_line(view)


def test_a_part_of_the_reward_is_no_task() -> None:
    steps = [step_facts(1, **{"reward/even": 0.25, "reward/solve_ded": 0.5})]
    assert [(curve.role, curve.task) for curve in view_of(steps=steps).rewards] == [("solve", "ded")]


def test_a_metric_that_is_missing_or_not_a_number_leaves_a_gap() -> None:
    steps = [step_facts(1, entropy=0.5), step_facts(2, loss=1.0), step_facts(3, entropy=float("nan"), loss=2.0)]
    view = view_of(steps=[*steps, step_facts(4, entropy=0.7)])
    assert [curve.values for curve in view.signals] == [(0.5, 0.7)]


def test_scores_begin_with_the_runs_first_validation_and_end_with_the_mean() -> None:
    view = view_of(validations=[validation_facts(40), validation_facts(60)])
    assert [row.task for row in view.scores] == ["ded", "abd", "ind", "mean"]
    assert [score.step for score in view.scores[0].scores] == [0, 40, 60]


def test_the_change_since_the_start_is_certain_only_where_intervals_are_apart() -> None:
    view = view_of(validations=[validation_facts(0), validation_facts(120)])
    certain = {row.task: (row.change > 0.2, row.is_certain) for row in view.scores}
    assert certain == {"ded": (True, True), "abd": (True, True), "ind": (False, False), "mean": (True, True)}


def test_worked_share_and_length_of_the_mean_are_those_of_the_tasks() -> None:
    mean = view_of(validations=[validation_facts(0)]).scores[-1].last
    tasks = [row.last for row in view_of(validations=[validation_facts(0)]).scores[:-1]]
    assert mean.worked == pytest.approx(sum(score.worked for score in tasks) / 3)


def test_only_the_first_suite_is_drawn() -> None:
    other = validation_facts(50, suite="cruxeval")
    view = view_of(validations=[validation_facts(0), other, validation_facts(60)])
    assert [score.step for score in view.scores[0].scores] == [0, 60]


def test_text_from_outside_loses_its_controls() -> None:
    view = a_view(program="x = '\x1b[2J\u202e'", event="\x1b]0;title\x07")
    assert view.example.program == ("x = '␛[2J�'",)
    assert view.events[-1].text == "␛]0;title␇"


def test_the_last_events_are_kept_in_order() -> None:
    events = [EventFacts(float(n), 0, 0, "master", str(n)) for n in range(40)]
    assert [event.text for event in view_of(events=events).events] == [str(n) for n in range(16, 40)]


def test_facts_are_not_changed() -> None:
    steps = [step_facts(1)]
    before = replace(steps[0], metrics=dict(steps[0].metrics))
    view_of(steps=steps)
    assert steps == [before]
