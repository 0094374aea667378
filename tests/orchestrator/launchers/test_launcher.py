"""The seam that starts workers: a launcher from outside carries a run, through a kill, to the same bytes as `local`."""

from __future__ import annotations

import ast
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from orchestrator.launchers.launcher import Handle, Launcher
from orchestrator.launchers.registry import launcher_named
from profiles.errors import ExitCode
from profiles.launchers import LAUNCHERS
from profiles.schema import Profile
from tests import REPOSITORY
from tests.extending import example
from tests.faults.conftest import Clean
from tests.faults.conftest import clean as clean
from tests.faults.harness import Scene, is_alive, scene
from tests.faults.invariants import check_invariants
from tests.orchestrator.launchers import nice

NICE = f"{nice.__name__}:Nice"
JOBS = "tests.orchestrator.launchers.jobs:Jobs"
SLOW = {"fake__step_s": 0.1, "run__checkpoint_every": 100}
"""A master that is killed in this has steps to repeat."""


def written(run: Scene) -> list[Handle]:
    """Handles of workers that may live."""
    found = []
    for path in run.run.workers.glob("[!.]*.json"):
        with suppress(FileNotFoundError):
            found.append(msgspec.json.decode(path.read_bytes(), type=Handle))
    return found


# --- one from outside ----------------------------------------------------------------------------------------


def test_a_launcher_from_outside_is_killed_with_its_master_and_resumed_and_ends_as_local_does(
    clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", launch__launcher=NICE, **SLOW) as run:
        master = run.start()
        master.wait_for(run.run.rollout_file(1, 3).exists)
        assert psutil.Process(master.worker_pid()).nice() == 19, "it is this launcher that starts workers"
        master.kill()
        run.finish()
        assert [state for state, *_ in run.attempts()] == ["lost", "succeeded"]
        check_invariants(run, clean.ending)
        assert list(run.run.workers.iterdir()) == []


def test_a_launcher_of_one_s_own_is_one_file_of_forty_lines_that_nothing_of_ours_names() -> None:
    path = Path(nice.__file__)
    ours = [file for folder in ("orchestrator", "profiles", "state", "workers") for file in folder_of(folder)]
    assert [str(file) for file in ours if re.search(r"launchers\.nice|\bNice\b", file.read_text())] == []
    used = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    assert {module for module in used if module and module.startswith("orchestrator")} == {
        "orchestrator.launchers.launcher",
        "orchestrator.launchers.local",
    }
    assert len(path.read_text().splitlines()) < 40


def folder_of(name: str) -> list[Path]:
    return sorted((REPOSITORY / name).rglob("*.py"))


def test_the_document_shows_that_very_file() -> None:
    assert example("A launcher of your own") == Path(nice.__file__).read_text()


# --- one without processes -----------------------------------------------------------------------------------


def test_workers_that_have_a_job_id_and_no_pid_end_as_local_ones_do(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", launch__launcher=JOBS) as run:
        (tmp_path / "jobs").mkdir()
        master = run.start(env={"JOBS": str(tmp_path / "jobs")})
        assert master.end() == 0, master.text()
        assert "(job " in master.out.read_text()
        check_invariants(run, clean.ending)


def test_a_run_that_goes_on_with_another_launcher_ends_what_the_old_one_left(clean: Clean, tmp_path: Path) -> None:
    """What is left carries no mark, so that nobody but the old launcher can find it."""
    (tmp_path / "jobs").mkdir()
    with scene(tmp_path / "run", **SLOW) as run:
        master = run.start(launch__launcher=JOBS, env={"JOBS": str(tmp_path / "jobs")})
        master.wait_for(run.run.rollout_file(1, 2).exists)
        jobs = [int((tmp_path / f"jobs/{handle.job}.pid").read_text()) for handle in written(run) if handle.job]
        for job in jobs:
            os.killpg(job, signal.SIGSTOP)  # deaf to its lifeline
        try:
            master.kill()
            assert jobs and all(map(is_alive, jobs))
            second = run.start(launch__launcher="local", env={"JOBS": str(tmp_path / "jobs")})
            second.wait_for_line("of an earlier master were still there; they are ended")
            assert not any(map(is_alive, jobs))
        finally:
            for job in jobs:
                with suppress(ProcessLookupError):
                    os.killpg(job, signal.SIGKILL)
        assert second.end() == 0, second.text()
        check_invariants(run, clean.ending)


# --- which one -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_of_ours_has_the_methods_of_one(name: str) -> None:
    assert isinstance(launcher_named(name, Profile(name="x")), Launcher)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lsf", '[launch] launcher = "lsf"  is one of local, ray, slurm, or a class of your own as module:Class'),
        (
            "no.such.module:Launcher",
            "launch.launcher = 'no.such.module:Launcher' cannot be loaded: ModuleNotFoundError",
        ),
        ("builtins:str", "launch.launcher = 'builtins:str' has no start, poll, signal, wait, adopt"),
    ],
)
def test_a_launcher_that_is_none_is_refused_before_anything_is_written(name: str, told: str, tmp_path: Path) -> None:
    with scene(tmp_path / "run", launch__launcher=name) as run:
        master = run.finish(code=ExitCode.INPUT)
        assert told in master.err.read_text()
        assert not run.run.root.exists()
