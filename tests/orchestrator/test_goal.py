"""--until: the held-out score at which a run is finished."""

from __future__ import annotations

import argparse

import pytest

from orchestrator.commands.run import shorthands
from orchestrator.goal import names_of, score_of
from orchestrator.schedule import Stop, Train, next_action
from profiles.errors import ExitCode
from profiles.goal import Goal, parse_goal
from profiles.load import load_profile
from profiles.schema import Azr, Profile, Run
from state.history import ValidationFacts
from state.states import CycleState, RunState
from tests.orchestrator.test_schedule import NOW, cycle, history


def scored(suite: str = "pocket", **fields: float) -> ValidationFacts:
    metrics = {"mean": {"accuracy": 0.8, "sampled_accuracy": 0.6, "n": 900.0} | fields, "ind": {"accuracy": 0.5}}
    return ValidationFacts(2, 40, suite, 0.8, 720, 900, metrics)


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("mean>=0.9", Goal("", "mean", "accuracy", ">=", 0.9)),
        (" pocket/ind.sampled_accuracy > .8 ", Goal("pocket", "ind", "sampled_accuracy", ">", 0.8)),
        ("cruxeval-o/ded<1", Goal("cruxeval-o", "ded", "accuracy", "<", 1.0)),
    ],
)
def test_a_goal_is_read(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal
    assert parse_goal(str(goal)) == goal


@pytest.mark.parametrize("text", ["", "mean", "mean>=", "mean=0.9", "mean>=x", "a/b/c>1", "mean>=0.9 or ind>=1"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must have the form"):
        parse_goal(text)


@pytest.mark.parametrize(
    ("goal", "score"),
    [
        ("mean>=0.9", 0.8),
        ("mean.sampled_accuracy>=0.9", 0.6),
        ("pocket/mean>=0.9", 0.7),
        ("crux/mean>=0.9", 0.9),
        ("meann>=0.9", None),
        ("mean.acc>=0.9", None),
        ("gsm8k/mean>=0.9", None),
    ],
)
def test_without_a_suite_the_mean_over_suites_counts(goal: str, score: float | None) -> None:
    validations = [scored("pocket", accuracy=0.7), scored("crux", accuracy=0.9)]
    found = score_of(parse_goal(goal), validations)
    assert found == (None if score is None else pytest.approx(score))


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ("mean>=0.8", Stop("mean.accuracy >= 0.8 is reached: 0.800 in cycle 2", RunState.FINISHED, ExitCode.OK)),
        ("mean>=0.81", Train(3, 1, "train", 41, 61)),
        ("", Train(3, 1, "train", 41, 61)),
    ],
)
def test_a_reached_goal_finishes_the_run_between_two_cycles(until: str, expected: Stop | Train) -> None:
    past = history(cycle(2, CycleState.COMMITTED, validations=(scored(),)), 40)
    assert next_action(past, Profile(name="test", run=Run(until=until)), NOW) == expected


def test_a_goal_comes_before_stagnation() -> None:
    last = cycle(2, CycleState.COMMITTED, validations=(scored(),), verdict="plateau:stop", evidence="flat")
    ending = next_action(history(last, 40), Profile(name="test", run=Run(until="mean>0.7")), NOW)
    assert isinstance(ending, Stop)
    assert ending.state is RunState.FINISHED


def test_a_goal_that_no_suite_has_is_an_error_with_the_names_that_there_are() -> None:
    past = history(cycle(2, CycleState.COMMITTED, validations=(scored(),)), 40)
    ending = next_action(past, Profile(name="test", run=Run(until="maen>0.7")), NOW)
    assert isinstance(ending, Stop)
    assert (ending.state, ending.exit_code) == (RunState.FAILED, ExitCode.INPUT)
    assert "pocket/mean.accuracy" in ending.advice
    assert names_of([scored()]) == ["pocket/ind.accuracy", "pocket/mean.accuracy", "pocket/mean.sampled_accuracy"]


def test_a_run_of_the_seed_phase_alone_stops_and_goes_on_with_both() -> None:
    past = history(cycle(0, CycleState.COMMITTED), 0)
    ending = next_action(past, Profile(name="test", run=Run(phases=("seed",)), azr=Azr(seed_tasks=256)), NOW)
    assert isinstance(ending, Stop)
    assert (ending.state, ending.exit_code) == (RunState.STOPPED, ExitCode.OK)
    assert "256 tasks of each kind" in ending.reason
    assert isinstance(next_action(past, Profile(name="test"), NOW), Train)


@pytest.mark.parametrize(
    ("options", "run"),
    [
        ({"phases": "seed"}, Run(phases=("seed",))),
        ({"phases": "seed, train", "max_cycles": "7"}, Run(max_cycles=7)),
        ({"max_hours": "1.5", "until": "mean>=0.9"}, Run(max_hours=1.5, until="mean>=0.9")),
        ({}, Run()),
    ],
)
def test_short_options_are_knobs(options: dict[str, str], run: Run) -> None:
    none = dict.fromkeys(("phases", "max_hours", "max_cycles", "until"))
    overrides = shorthands(argparse.Namespace(**none | options))
    profile = load_profile("pocket", overrides).profile
    names = ("phases", "max_hours", "max_cycles", "until")
    assert [getattr(profile.run, name) for name in names] == [getattr(run, name) for name in names]
