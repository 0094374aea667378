"""Handles of workers: written down around each start, and what the next master makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import handles
from orchestrator.launchers.launcher import Handle
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state.history import AttemptFacts
from state.layout import RunDir
from state.states import AttemptState
from tests.orchestrator.launchers import jobs_in_bash as bash

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


@pytest.mark.parametrize(
    ("scancel", "ended"),
    [
        pytest.param("rm -f {folder}/lives", True, id="answered"),
        pytest.param("echo 'scancel: error: Socket timed out' >&2; exit 1", False, id="not answered"),
    ],
)
def test_the_handle_of_a_job_goes_once_the_job_has_ended(
    scancel: str, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = "if [ -e {folder}/lives ]; then echo JobState=RUNNING; else echo JobState=CANCELLED; fi"
    for name, line in (("scontrol", show), ("scancel", scancel), ("squeue", "")):
        bash.program(tmp_path, name, f"#!/bin/sh\n{line.format(folder=tmp_path)}\n")
    (tmp_path / "lives").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(handles, "JOBS_S", 0.0)
    run = RunDir(tmp_path / "run")
    handles.write(run, Handle("slurm", "mine", "t1", job="7"))
    assert handles.end_all(run, "mine", PROFILE) == int(ended)
    assert run.worker("t1").exists() is not ended


def test_a_worker_that_did_not_end_is_fenced_off_its_attempt(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    living, over = (
        AttemptFacts(3, "train", number, token, AttemptState.RUNNING, 1, 1, progressed=False)
        for number, token in ((1, "t1"), (2, "t2"))
    )
    for attempt in (living, over):
        directory = run.attempt(3, attempt.attempt)
        directory.path.mkdir(parents=True)
        directory.claim(0).touch()
    handles.write(run, Handle("slurm", "mine", "t1", job="7"))
    assert handles.fence_off(run, [living, over]) == [living]
    assert run.attempt(3, 1).claim(1).exists() and not run.attempt(3, 2).claim(1).exists()
