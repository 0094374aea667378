"""Handles of workers: written down around each start, and what the next master makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import handles
from orchestrator.launchers.launcher import Handle
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state.layout import RunDir

PROFILE = Profile(name="handles-test")


def test_handles_of_another_directory_are_left_alone(tmp_path: Path) -> None:
    """A copy of a run has the handles of the original."""
    run = RunDir(tmp_path)
    handles.write(run, Handle("no.such:Launcher", "original", "t1"))
    assert handles.end_all(run, "copy", PROFILE) == 0
    assert list(run.workers.iterdir()) == []


def test_workers_of_a_launcher_that_is_gone_are_named_with_what_to_do(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    handles.write(run, Handle("no.such:Launcher", "mine", "t1"))
    with pytest.raises(LonghaulError) as error:
        handles.end_all(run, "mine", PROFILE)
    assert error.value.exit_code == ExitCode.INPUT
    assert "1 workers of an earlier master may still run" in error.value.what
    assert f"rm {run.worker('t1')}" in error.value.next_command
    assert run.worker("t1").exists(), "asked again at the next start"
