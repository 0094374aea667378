"""E7: a run goes on with the profile that it began with, or with a change that is known to be safe."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings

from profiles.changes import Change, another_run, diff, refusal, render, with_profile
from profiles.errors import ExitCode
from profiles.knobs import value_of
from profiles.load import load_profile
from profiles.rules import check
from profiles.schema import Profile
from tests.profiles.strategies import profile_with, settings_of_knobs

OLD = Profile(name="mine")
ANOTHER = "python -m orchestrator run --run NEW-NAME --profile mine.toml"


def changes(**knobs: Any) -> list[Change]:
    return diff(OLD, profile_with("mine", {name.replace("__", "."): value for name, value in knobs.items()}))


def test_equal_profiles_differ_in_nothing() -> None:
    assert diff(OLD, Profile(name="mine")) == []


def test_each_changed_knob_is_listed_with_what_its_change_means() -> None:
    assert changes(run__seed=3, run__max_cycles=9, azr__group_size=4) == [
        Change("run.seed", 0, 3, "fixed"),
        Change("run.max_cycles", 0, 9, "free"),
        Change("azr.group_size", 8, 4, "guarded"),
    ]


def test_another_name_or_description_is_no_change() -> None:
    assert diff(OLD, Profile(name="yours", description="other words")) == []


@pytest.mark.parametrize(
    ("knobs", "accepted", "refused"),
    [
        pytest.param({}, False, False, id="no change"),
        pytest.param({"run__max_cycles": 9}, False, False, id="a free knob"),
        pytest.param({"azr__group_size": 4}, False, True, id="a guarded knob"),
        pytest.param({"azr__group_size": 4}, True, False, id="a guarded knob, accepted"),
        pytest.param({"azr__tasks": ("ded",)}, False, True, id="a fixed knob"),
        pytest.param({"azr__tasks": ("ded",)}, True, True, id="a fixed knob cannot be accepted"),
        pytest.param({"azr__tasks": ("ded",), "azr__group_size": 4}, True, True, id="fixed and guarded, accepted"),
    ],
)
def test_who_may_change_when(knobs: dict[str, Any], accepted: bool, refused: bool) -> None:
    assert (refusal(changes(**knobs), accept_changes=accepted, another_run=ANOTHER) is not None) == refused


@pytest.mark.parametrize("knob", ["model.path", "model.dtype", "azr.tasks", "run.seed", "run.worker", "data.tasks"])
def test_model_tasks_and_seed_are_fixed(knob: str) -> None:
    other = {"azr.tasks": ("ded",), "run.seed": 1, "run.worker": "fake", "model.dtype": "bfloat16"}.get(knob, "other")
    assert [change.kind for change in diff(OLD, profile_with("mine", {knob: other}))] == ["fixed"]


def test_a_refusal_shows_the_whole_difference_and_the_way_on() -> None:
    error = refusal(changes(azr__group_size=4, run__max_cycles=9), accept_changes=False, another_run=ANOTHER)
    assert error is not None
    assert error.render() == (
        "error: the run was begun with another value of azr.group_size\n"
        "  run.max_cycles  0 -> 9  may change at any time\n"
        "  azr.group_size  8 -> 4  needs --accept-changes\n"
        "kept:  the run, unchanged; nothing was started\n"
        "next:  repeat the command with --accept-changes"
    )
    assert error.exit_code == ExitCode.INPUT


def test_a_fixed_knob_leads_to_a_new_run() -> None:
    error = refusal(changes(model__path="other"), accept_changes=True, another_run=ANOTHER)
    assert error is not None
    assert error.what.startswith("the run cannot go on with another value of model.path\n")
    assert error.next_command == ANOTHER


@pytest.mark.parametrize(
    ("name", "overrides", "command"),
    [
        pytest.param("pocket-grpo", [], "--profile pocket-grpo", id="a shipped profile"),
        pytest.param(
            "grpo-1.5b-8gb", ["model.path=/my models/a", "run.max_cycles=3", 'adapter.targets=["q_proj"]'],
            "--profile grpo-1.5b-8gb --set run.max_cycles=3 --set 'model.path=/my models/a' "
            """--set 'adapter.targets=["q_proj"]'""", id="and what was set",
        ),
        pytest.param("azr-0.5b", ["name=mine", "run.seed=7"], "--profile azr-0.5b --set run.seed=7", id="a file's"),
    ],
)  # fmt: skip
def test_another_run_is_begun_by_a_command_that_names_the_profile(
    name: str, overrides: list[str], command: str
) -> None:
    profile = load_profile(name, overrides).profile
    assert another_run(profile) == f"python -m orchestrator run --run NEW-NAME {command}"


def test_what_a_worker_advises_is_completed_by_the_profile() -> None:
    profile = load_profile("pocket-grpo").profile
    whole = "restore the file, or: python -m orchestrator run --run NEW-NAME --profile pocket-grpo"
    assert with_profile("restore the file, or: python -m orchestrator run --run NEW-NAME", profile) == whole
    assert with_profile("head -c 300 file", profile) == "head -c 300 file"


@settings(max_examples=15)
@given(settings_of_knobs())
def test_the_command_for_another_run_leads_to_the_same_profile(some: dict[str, Any]) -> None:
    profile = profile_with("mine", some)
    assume(not check(profile))
    words = shlex.split(another_run(profile))
    sets = [word for before, word in pairwise(words) if before == "--set"]
    assert diff(load_profile(words[words.index("--profile") + 1], sets).profile, profile) == []


def test_before_the_first_checkpoint_changes_are_shown_without_a_verdict() -> None:
    assert render(changes(model__path="other", run__max_cycles=9), has_begun=False) == (
        '  run.max_cycles  0 -> 9\n  model.path      "pocket" -> "other"'
    )


def test_nothing_to_show_is_an_empty_text() -> None:
    assert render([]) == ""


@given(settings_of_knobs(), settings_of_knobs())
def test_the_difference_is_exactly_the_knobs_that_differ(first: dict[str, Any], second: dict[str, Any]) -> None:
    old, new = profile_with("mine", first), profile_with("mine", second)
    found = {change.key: (change.old, change.new) for change in diff(old, new)}
    assert found == {
        name: (value_of(old, name), value_of(new, name))
        for name in {*first, *second} - {"description"}
        if value_of(old, name) != value_of(new, name)
    }
