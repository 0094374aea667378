"""Runs that Python starts, watches and ends: real masters with the fake trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import longhaul
from longhaul.process import error_of, three_lines
from longhaul.start import overrides_of
from state.layout import RunDir
from tests import REPOSITORY
from tests.faults.harness import KNOBS
from tests.python_package.conftest import Start


def test_a_run_is_started_watched_to_its_end_and_read(start: Start) -> None:
    run = start()
    assert [step.step for step in run.watch(poll_s=0.01)] == [1, 2, 3, 4, 5, 6]
    status = run.wait(60)
    assert (status.state, status.step, status.head_step, status.is_running) == ("finished", 6, 6, False)
    assert [one.step for one in run.validations()] == [0, 6]
    assert [one.is_head for one in run.checkpoints()][-1] is True


def test_the_same_name_resumes_the_run_and_so_does_resume(start: Start, tmp_path: Path) -> None:
    start().wait(60)
    assert longhaul.resume("night", folder=tmp_path, settings={"run.max_cycles": 2}).wait(60).step == 12
    assert start(run__max_cycles=3).wait(60).step == 18


def test_a_checkpoint_is_made_while_it_goes_on_and_stop_ends_it(endless: longhaul.Run) -> None:
    next(endless.watch(poll_s=0.01))
    made = endless.checkpoint(timeout_s=60)
    assert made.path.is_dir() and endless.status().is_running
    status = endless.stop(timeout_s=60)
    assert (status.state, status.is_running) == ("stopped", False)
    assert status.head_step is not None and status.head_step >= made.step
    assert endless.wait(60).state == "stopped"


def test_a_run_that_was_stopped_at_once_has_not_failed(endless: longhaul.Run) -> None:
    assert endless.stop(now=True).state == "stopped"
    assert endless.wait(60).state == "stopped"


def test_another_handle_sees_and_ends_the_run(endless: longhaul.Run, tmp_path: Path) -> None:
    (other,) = longhaul.runs(tmp_path)
    assert other.name == longhaul.open_run(folder=tmp_path).name == "night"
    assert next(other.watch(poll_s=0.01)).step == 1
    with pytest.raises(TimeoutError, match="has not ended after 0 s"):
        other.wait(0)
    other.stop(timeout_s=60)
    assert other.wait(60).state == endless.wait(60).state == "stopped"


def test_a_master_that_was_killed_is_an_error_with_what_was_kept(endless: longhaul.Run, tmp_path: Path) -> None:
    other = longhaul.open_run("night", tmp_path)
    pid = endless.status().master_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(longhaul.LonghaulError, match="was killed by signal 9") as told:
        endless.wait(60)
    assert told.value.next_command == f"python -m orchestrator run --runs {tmp_path} --run night"
    with pytest.raises(longhaul.LonghaulError, match="interrupted: its master died") as told:
        other.wait(60)
    assert told.value.next_command == f"python -m orchestrator run --runs {tmp_path} --run night"


def test_a_run_that_is_driven_already_is_refused_with_the_exit_code_and_three_lines(
    endless: longhaul.Run, start: Start
) -> None:
    with pytest.raises(longhaul.LonghaulError) as told:
        start(run__max_cycles=100_000, fake__step_s=0.01)
    assert told.value.exit_code == longhaul.ExitCode.LOCKED
    assert f"{endless.status().master_pid}" in told.value.what and told.value.kept and told.value.next_command


def test_a_run_that_fails_raises_what_its_master_said(start: Start, tmp_path: Path) -> None:
    with pytest.raises(longhaul.LonghaulError, match="run 'night' stopped: ") as told:
        start(fake__fault="error:4!").wait(60)  # the mark: in every attempt
    assert (
        told.value.exit_code == longhaul.ExitCode.INTERNAL and "the fake trainer was asked to fail" in told.value.what
    )
    other = longhaul.open_run("night", tmp_path)
    assert other.status().state == "failed"
    with pytest.raises(longhaul.LonghaulError, match="run 'night' failed: "):
        other.wait(60)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"run.sed": 1, "run.max_cycels": 2}, longhaul.ExitCode.INPUT, "2 problems"),
        ({"run.seed": "x"}, longhaul.ExitCode.INPUT, "seed"),
    ],
)
def test_every_problem_of_a_profile_is_told_before_anything_starts(
    settings: dict[str, object], code: longhaul.ExitCode, words: str, tmp_path: Path
) -> None:
    with pytest.raises(longhaul.LonghaulError, match=words) as told:
        longhaul.start("fake", name="night", folder=tmp_path, settings=settings)
    assert told.value.exit_code == code and not (tmp_path / "night").exists()


@pytest.mark.parametrize("name", ["../x", "", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    for work in (lambda: longhaul.open_run(name, tmp_path), lambda: longhaul.resume(name, folder=tmp_path)):
        with pytest.raises(longhaul.LonghaulError) as told:
            work()
        assert told.value.exit_code == longhaul.ExitCode.USAGE


def test_nobody_can_be_asked_when_nobody_drives_the_run(start: Start) -> None:
    run = start()
    run.wait(60)
    for ask in (run.stop, run.checkpoint):
        with pytest.raises(longhaul.LonghaulError, match="no master is running") as told:
            ask()
        assert told.value.exit_code == longhaul.ExitCode.INPUT
        assert told.value.next_command == f"python -m orchestrator run --runs {run.path.parent} --run night"


def test_a_run_goes_on_when_the_python_that_started_it_ends(tmp_path: Path) -> None:
    code = (
        "import json, longhaul, sys\n"
        f"run = longhaul.start('fake', name='night', folder={str(tmp_path)!r}, settings=json.loads(sys.argv[1]))\n"
        "print(run.status().is_running)\n"
    )
    knobs = json.dumps(KNOBS | {"run.max_cycles": 3, "fake.step_s": 0.02})
    told = subprocess.run(
        [sys.executable, "-c", code, knobs], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert told.stdout == "True\n"
    assert longhaul.open_run("night", tmp_path).wait(60).state == "finished"


def test_settings_become_the_words_of_the_command_line() -> None:
    settings = {"run.seed": 7, "model.path": "a b", "run.deterministic": True, "validation.suites": ["words"]}
    assert overrides_of(settings) == [
        "run.seed=7", 'model.path="a b"', "run.deterministic=true", 'validation.suites=["words"]',
    ]  # fmt: skip


LINES = "warning: x\nerror: it failed:\n       twice\nkept:  the head\nnext:  python -m orchestrator run\n"


def test_the_three_lines_of_the_last_error_are_found() -> None:
    wanted = ("it failed:\n       twice", "the head", "python -m orchestrator run")
    assert three_lines(LINES) == three_lines(f"error: a\nkept:  b\nnext:  c\n{LINES}") == wanted
    assert three_lines("") == three_lines("error: half of it") == three_lines("Traceback ...") == ("", "", "")


@pytest.mark.parametrize(
    ("code", "text", "exit_code", "what"),
    [
        (66, LINES, longhaul.ExitCode.INPUT, "it failed:\n       twice"),
        (-9, "", longhaul.ExitCode.INTERNAL, "the master of run 'x' was killed by signal 9"),
        (1, "Traceback", longhaul.ExitCode.INTERNAL, "the master of run 'x' ended with 1"),
    ],
)
def test_an_error_has_the_code_and_the_lines_of_the_master(
    code: int, text: str, exit_code: longhaul.ExitCode, what: str
) -> None:
    error = error_of(RunDir(Path("runs/x")), code, text)
    assert (error.exit_code, error.what) == (exit_code, what) and error.kept and error.next_command
