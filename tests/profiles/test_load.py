"""A profile is read from a file, its base and --set; every problem is reported at once, with its place."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.load import (
    Loaded,
    from_json,
    load_profile,
    override_profile,
    resolved_json,
    shipped_profiles,
)
from profiles.schema import Profile


def load_text(tmp_path: Path, text: str, *overrides: str) -> Loaded:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_profile(str(path), overrides)


def refusal(name: str, *overrides: str) -> LonghaulError:
    with pytest.raises(LonghaulError) as caught:
        load_profile(name, overrides)
    return caught.value


def refusal_of_text(tmp_path: Path, text: str, *overrides: str) -> LonghaulError:
    with pytest.raises(LonghaulError) as caught:
        load_text(tmp_path, text, *overrides)
    return caught.value


# -- what is read --


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_shipped_profile_loads_and_is_named_after_its_file(name: str) -> None:
    profile = load_profile(name).profile
    assert profile.name == name
    assert profile.description


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_shipped_profile_begins_with_its_hardware_and_its_launch_command(name: str) -> None:
    head = (Path("profiles") / f"{name}.toml").read_text(encoding="utf-8").split("\n\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "CPU" in head or "GPU" in head
    assert f"make run PROFILE={name}" in head or f"--profile {name}" in head


def test_a_file_without_a_name_is_named_after_itself(tmp_path: Path) -> None:
    assert load_text(tmp_path, "").profile == Profile(name="mine")


def test_a_profile_keeps_what_its_base_says_and_changes_the_rest(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, 'extends = "pocket"\n[azr]\ngroup_size = 4\n')
    assert loaded.profile.azr.group_size == 4
    assert loaded.profile.azr.proposals_per_task == load_profile("pocket").profile.azr.proposals_per_task
    assert loaded.profile.name == "mine"
    assert loaded.profile.description == ""
    assert loaded.sources == (str(tmp_path / "mine.toml"), "profiles/pocket.toml")


def test_a_base_given_as_a_path_is_relative_to_the_file_that_extends_it(tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    (tmp_path / "bases/slow.toml").write_text("[run]\nsteps_per_cycle = 7\n")
    (tmp_path / "bases/slower.toml").write_text('extends = "slow.toml"\n')
    assert load_text(tmp_path, 'extends = "bases/slower.toml"').profile.run.steps_per_cycle == 7


def test_every_value_has_an_origin(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, 'extends = "pocket"\n\n[azr]\ngroup_size = 4\n', "run.seed=3")
    assert loaded.origins["azr.group_size"] == f"{tmp_path}/mine.toml:4"
    assert loaded.origins["run.seed"] == "--set"
    assert loaded.origins["sandbox.cpu_s"] == "default"
    assert loaded.origins["azr.tasks"].startswith("profiles/pocket.toml:")


@pytest.mark.parametrize(
    ("override", "section", "key", "expected"),
    [
        pytest.param("run.seed=3", "run", "seed", 3, id="an integer"),
        pytest.param("run.max_hours=3", "run", "max_hours", 3.0, id="an integer where a number is wanted"),
        pytest.param("optimizer.learning_rate=1e-3", "optimizer", "learning_rate", 1e-3, id="a number"),
        pytest.param("run.deterministic=false", "run", "deterministic", False, id="a truth value"),
        pytest.param("run.device=cpu", "run", "device", "cpu", id="a bare word"),
        pytest.param('run.device="cpu"', "run", "device", "cpu", id="a quoted word"),
        pytest.param(" run.device = cpu ", "run", "device", "cpu", id="spaces around"),
        pytest.param("model.path=/models/a=b#c", "model", "path", "/models/a=b#c", id="a text with signs of TOML"),
        pytest.param("model.path=7", "model", "path", "7", id="a text that looks like a number"),
        pytest.param("model.path=", "model", "path", "", id="an empty text"),
        pytest.param('azr.tasks=["ded"]', "azr", "tasks", ("ded",), id="a list"),
        pytest.param("optimizer.betas=[0, 0.5]", "optimizer", "betas", (0.0, 0.5), id="a pair"),
    ],
)
def test_set_takes_toml_values_and_bare_words(override: str, section: str, key: str, expected: Any) -> None:
    value = getattr(getattr(load_profile("pocket", [override]).profile, section), key)
    assert value == expected
    assert type(value) is type(expected)


def test_set_wins_over_the_file_and_the_last_set_wins() -> None:
    assert load_profile("pocket", ["azr.group_size=3", "azr.group_size=5"]).profile.azr.group_size == 5


def test_set_can_name_the_profile() -> None:
    assert load_profile("pocket", ["name=night"]).profile.name == "night"


def test_a_stored_profile_can_be_overridden() -> None:
    stored = load_profile("pocket").profile
    assert override_profile(stored, ["azr.group_size=5"]) == load_profile("pocket", ["azr.group_size=5"]).profile
    assert override_profile(stored, []) == stored


def test_a_wrong_override_of_a_stored_profile_is_refused() -> None:
    with pytest.raises(LonghaulError) as caught:
        override_profile(load_profile("pocket").profile, ["azr.group_size=1", "optimizer.decay_steps=3"])
    assert "[azr] group_size = 1" in caught.value.what
    assert "warmup_steps = 5  must be less than decay_steps (3)" in caught.value.what
    assert "(the stored profile)" in caught.value.what


def test_minus_zero_is_zero() -> None:
    assert resolved_json(load_profile("pocket", ["run.max_hours=-0.0"]).profile) == resolved_json(
        load_profile("pocket").profile
    )


# -- what is refused --


def test_all_problems_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    text = (
        'extends = "pocket"\n[azr]\ngroup_size = 1\n[run]\nsetps_per_cycle = 3\n'
        "[optimizer]\ndecay_steps = 4\nwarmup_steps = 5\n"
    )
    error = refusal_of_text(tmp_path, text, "sandbox.jobs=none")
    path = tmp_path / "mine.toml"
    assert error.what.splitlines() == [
        "profile 'mine' has 4 problems",
        f"  [run] setps_per_cycle         unknown key; did you mean steps_per_cycle?  ({path}:5)",
        f"  [azr] group_size = 1          must be an integer >= 2  ({path}:3)",
        '  [sandbox] jobs = "none"       must be an integer >= 1  (--set)',
        "  [optimizer] warmup_steps = 5  must be less than decay_steps (4), "
        f"or the learning rate never reaches its value  ({path}:8)",
    ]
    assert error.exit_code == ExitCode.INPUT
    assert error.kept == "nothing was started"
    assert "docs/profiles.md" in error.next_command


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[azr]\ngruop_size = 4", "[azr] gruop_size  unknown key; did you mean group_size?", id="a typo"),
        pytest.param("[run]\ngroup_size = 4", "unknown key; it belongs under [azr]", id="under the wrong section"),
        pytest.param("group_size = 4", "unknown key; it belongs under [azr]", id="under no section"),
        pytest.param("[run]\nqqq = 4", "[run] qqq  unknown key  (", id="nothing near"),
        pytest.param("[optimiser]\nx = 1", "unknown section; did you mean [optimizer]?", id="an unknown section"),
        pytest.param("run = 3", "is a section: write its knobs under a line [run]", id="a section with a value"),
        pytest.param("[run.seed]\na = 1", "must be an integer >= 0", id="a section where a value belongs"),
        pytest.param('[run]\nseed = "1"', '[run] seed = "1"  must be an integer >= 0', id="text for a number"),
        pytest.param("[run]\nseed = 1.5", "[run] seed = 1.5  must be an integer >= 0", id="a fraction"),
        pytest.param(
            "[run]\nseed = true", "[run] seed = true  must be an integer >= 0", id="a truth value for a number"
        ),
        pytest.param("[run]\nseed = -1", "must be an integer >= 0", id="under its bound"),
        pytest.param("[sampling]\ntemperature = 2.5", "must be a number > 0 and <= 2", id="over its bound"),
        pytest.param("[run]\ndeterministic = 1", "must be true or false", id="a number for a truth value"),
        pytest.param("[run]\ndeterministic = [1]", "must be true or false", id="a list for a truth value"),
        pytest.param('[run]\ndevice = "cpuu"', "must be one of auto, cpu, cuda; did you mean cpu?", id="a near choice"),
        pytest.param('[azr]\ntasks = ["dedd"]', "did you mean ded?", id="a near choice in a list"),
        pytest.param(
            "[azr]\ntasks = []",
            "must be a list, each one of abd, ded, ind or MODULE:NAME, not empty",
            id="an empty list",
        ),
        pytest.param('[azr]\ntasks = "ded"', "must be a list, each one of abd, ded, ind or", id="a word for a list"),
        pytest.param("[optimizer]\nbetas = [0.9]", "must be a list of 2, each a number", id="half a pair"),
        pytest.param("[optimizer]\nbetas = [0.9, nan]", "must be", id="not a number in a pair"),
        pytest.param("[optimizer]\nlearning_rate = inf", "must be a finite number", id="infinity"),
        pytest.param("[optimizer]\nentropy_coef = nan", "must be a finite number", id="not a number"),
        pytest.param("[model]\npath = 2026-01-01", "must be a text", id="a date for a text"),
        pytest.param(f"[run]\nseed = '{'x' * 58}'", f'[run] seed = "{"x" * 58}"  must be', id="a value of 60 signs"),
        pytest.param(f"[run]\nseed = '{'x' * 59}'", f'[run] seed = "{"x" * 56}...  must be', id="a longer value"),
        pytest.param('name = "../up"', "names a folder", id="a name that leaves the folder of runs"),
    ],
)
def test_what_is_wrong_is_said_in_words(tmp_path: Path, text: str, said: str) -> None:
    error = refusal_of_text(tmp_path, text)
    assert said in error.what
    assert error.what.startswith("profile 'mine' has 1 problem\n")
    assert f"{tmp_path}/mine.toml" in error.what


@pytest.mark.parametrize(
    ("override", "said"),
    [
        pytest.param("run.seed", "must have the form section.key=value", id="no value"),
        pytest.param("=3", "must have the form section.key=value", id="no name"),
        pytest.param("rnu.seed=3", "unknown section; did you mean run.seed?", id="a section with a typo"),
        pytest.param("run.sede=3", "unknown key; did you mean seed?", id="a key with a typo"),
        pytest.param("run.seed=three", '[run] seed = "three"  must be an integer >= 0', id="a word for a number"),
        pytest.param("run.seed=1\nrun.threads=2", "must be an integer", id="two lines in one"),
        pytest.param("extends=fake", "unknown key", id="a base is said in the file"),
        pytest.param("run=3", "[run]  is a section: write --set run.KEY=VALUE", id="a section"),
    ],
)
def test_what_is_wrong_with_set_is_said_in_words(override: str, said: str) -> None:
    error = refusal("pocket", override)
    assert said in error.what
    assert "(--set)" in error.what


def test_a_rule_is_silent_about_a_knob_that_is_refused_already(tmp_path: Path) -> None:
    error = refusal_of_text(tmp_path, "[sandbox]\nwall_s = -1\ncpu_s = 99")
    assert error.what.count("\n") == 1


def test_an_unknown_name_lists_the_shipped_ones_and_the_nearest() -> None:
    error = refusal("pokcet")
    assert "did you mean pocket?" in error.what
    assert all(name in error.what for name in shipped_profiles())
    assert error.next_command == "python -m orchestrator run --profile pocket"
    assert error.exit_code == ExitCode.INPUT


def test_a_name_like_no_other_leads_to_the_built_in_model() -> None:
    assert refusal("zzz").next_command == "python -m orchestrator run --profile pocket"


def test_an_unknown_section_is_found_at_its_line(tmp_path: Path) -> None:
    error = refusal_of_text(tmp_path, "[run]\nseed = 1\n\n[optimiser]\nlr = 1\n[azr]\nlr = 2\n")
    assert f"[optimiser]  unknown section; did you mean [optimizer]?  ({tmp_path}/mine.toml:4)" in error.what
    assert f"[azr] lr     unknown key  ({tmp_path}/mine.toml:7)" in error.what


@pytest.mark.parametrize("name", ["", "..", "../pocket", "/", "pocket/", "a\0b", "schema"])
def test_a_name_is_never_a_way_out_of_the_shipped_profiles(name: str) -> None:
    assert "no profile is named" in refusal(name).what


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "no.toml")).what == f"there is no file {tmp_path}/no.toml"


def test_a_missing_file_with_a_shipped_name_leads_to_the_shipped_profile(tmp_path: Path) -> None:
    error = refusal(str(tmp_path / "fake.toml"))
    assert error.next_command == "python -m orchestrator run --profile fake"


def test_a_missing_base_names_the_file_that_asked_for_it(tmp_path: Path) -> None:
    error = refusal_of_text(tmp_path, 'extends = "pokcet"')
    assert error.what.startswith(f"{tmp_path}/mine.toml extends another profile: no profile is named 'pokcet'")


def test_a_syntax_error_has_its_file_and_line(tmp_path: Path) -> None:
    error = refusal_of_text(tmp_path, "[run]\nseed = = 3\n")
    assert f"{tmp_path}/mine.toml is not valid TOML" in error.what
    assert "line 2" in error.what


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"name = '\xff'", "is not a text file in UTF-8 (byte 8)", id="not UTF-8"),
        pytest.param(b"a = " + b"[" * 100_000, "is not valid TOML", id="nested beyond all measure"),
        pytest.param(b"extends = 3", "the name of a profile or a path to a .toml, not 3", id="a number"),
        pytest.param(b"extends = ''", "extends must be the name of a profile", id="an empty base"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    assert said in refusal(str(tmp_path / "mine.toml")).what


def test_a_folder_named_like_a_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").mkdir()
    assert "cannot be read" in refusal(str(tmp_path / "mine.toml")).what


def test_a_file_that_may_not_be_read_has_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> bytes:  # root, who often runs the tests, may read everything
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert refusal(str(tmp_path / "mine.toml")).exit_code == ExitCode.PERMISSION


def test_profiles_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('extends = "mine.toml"')
    error = refusal_of_text(tmp_path, 'extends = "other.toml"')
    assert "in a circle" in error.what
    assert error.what.count("mine.toml") == 2


def test_a_profile_that_extends_itself_is_refused(tmp_path: Path) -> None:
    assert "in a circle" in refusal_of_text(tmp_path, 'extends = "mine.toml"').what


def test_a_stored_profile_with_an_unknown_knob_is_of_another_version() -> None:
    with pytest.raises(LonghaulError) as caught:
        from_json(b'{"name": "x", "run": {"warp": 9}}')
    assert caught.value.exit_code == ExitCode.VERSION
    assert "warp" in caught.value.what
