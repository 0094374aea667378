"""What holds for every command before it is chosen: words that are no text, and how cards are counted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.cli import COMMANDS, main
from orchestrator.launchers.environment import clean_environment
from orchestrator.machine import BY_BUS
from profiles.errors import ExitCode
from workers.environment import ENVIRONMENT

LATIN_1 = os.fsdecode(b"caf\xe9")
"""As a shell hands it on whose text is not UTF-8."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", [("--run", LATIN_1), ("--runs", LATIN_1), (LATIN_1,)])
def test_a_word_that_is_no_utf_8_is_told_by_every_command(
    command: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orchestrator.cli.SIGNALS.install", lambda: None)
    assert main([command, *words]) == ExitCode.USAGE == 2
    said = capsys.readouterr().err
    assert said.startswith("error: an argument on the command line is not UTF-8, at �: caf�\n")
    assert "\nkept:  everything; nothing was started\nnext:  the same command in UTF-8" in said
    assert not any(tmp_path.iterdir())


def test_of_a_long_word_the_place_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "a" * 9000 + LATIN_1 + "b" * 9000]) == ExitCode.USAGE
    assert capsys.readouterr().err.splitlines()[0].endswith(f", at �: {'a' * 27}caf�{'b' * 29}")


def test_words_in_any_script_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run", "café-試験-🜂"]) == ExitCode.INPUT
    assert "there is no run 'café-試験-🜂'" in capsys.readouterr().err


def environment_after(monkeypatch: pytest.MonkeyPatch, before: Mapping[str, str]) -> Mapping[str, str]:
    """Of a process that a command starts, whose own environment was `before`."""
    monkeypatch.setattr(os, "environ", dict(before))
    main(["status", "--run", "there-is-none"])
    return clean_environment("r0", "t1", "")


def test_what_a_command_starts_counts_cards_as_the_plan_does_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert environment_after(monkeypatch, {})["CUDA_DEVICE_ORDER"] == BY_BUS == ENVIRONMENT["CUDA_DEVICE_ORDER"]
    mine = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert environment_after(monkeypatch, mine)["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
