"""What holds for every profile and every text: a file, --set and the store say the same, and nothing crashes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import ExitCode, LonghaulError
from profiles.load import from_json, load_profile, profile_sha256, resolved_json
from profiles.rules import check
from tests.profiles.strategies import as_toml, profile_with, settings_of_knobs, toml_value
from tests.profiles.test_load import load_text, refusal_of_text


@given(chosen=settings_of_knobs())
def test_a_file_and_set_say_the_same(tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, Any]) -> None:
    expected = profile_with("mine", chosen)
    folder = tmp_path_factory.mktemp("p")
    overrides = [f"{knob}={toml_value(value)}" for knob, value in chosen.items()]
    if check(expected):
        assert refusal_of_text(folder, as_toml(chosen)).exit_code == ExitCode.INPUT
        assert refusal_of_text(folder, "", *overrides).exit_code == ExitCode.INPUT
    else:
        assert load_text(folder, as_toml(chosen)).profile == expected
        assert load_text(folder, "", *overrides).profile == expected


@given(chosen=settings_of_knobs())
def test_a_stored_profile_comes_back_whole_and_with_the_same_hash(chosen: dict[str, Any]) -> None:
    profile = profile_with("mine", chosen)
    again = from_json(resolved_json(profile))
    assert again == profile
    assert profile_sha256(again) == profile_sha256(profile)


@given(first=settings_of_knobs(), second=settings_of_knobs())
def test_two_profiles_have_one_hash_only_if_they_are_equal(first: dict[str, Any], second: dict[str, Any]) -> None:
    a, b = profile_with("mine", first), profile_with("mine", second)
    assert (profile_sha256(a) == profile_sha256(b)) == (a == b)


@given(text=st.text(), overrides=st.lists(st.text(), max_size=2))
@settings(max_examples=200)
def test_no_text_whatever_does_more_than_be_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, overrides: list[str]
) -> None:
    path = tmp_path_factory.mktemp("p") / "mine.toml"
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    for name in (str(path), text):
        try:
            load_profile(name, overrides)
        except LonghaulError as error:
            assert error.exit_code == ExitCode.INPUT
            assert error.render().startswith("error: ")
