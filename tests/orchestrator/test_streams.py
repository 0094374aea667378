"""Standard streams that are closed, or whose reader leaves: a run goes on, a command ends without a message."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.faults.conftest import Clean, clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants

__all__ = ["clean"]


def in_shell(line: str, where: Path) -> subprocess.CompletedProcess[str]:
    """`longhaul` in the line is our command; its exit code is that of the whole line."""
    words = f"{shlex.quote(sys.executable)} -m orchestrator"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("longhaul", words)], cwd=where, capture_output=True, text=True,
        timeout=110, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "end",
    [
        " | head -1",
        " <&- >&- 2>&-",
        " > /dev/full 2>&1",
        *(pytest.param(end, marks=pytest.mark.exhaustive) for end in (">&-", " 2>&-", " <&-", " > /dev/full")),
    ],
)
def test_a_run_whose_output_nobody_takes_goes_on_to_its_end(end: str, clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.05) as run:
        run.root.mkdir()
        done = in_shell(shlex.join(["longhaul", *run.command("--plain")[3:]]) + end, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert "finished, the one cycle is done" in run.run.log.read_text()
        check_invariants(run, clean.ending)


def test_a_reader_that_leaves_in_the_middle_of_a_run_costs_lines_alone(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.2) as run:
        reader, writer = os.pipe()
        master = run.launch(run.command("--plain"), stdout=writer)
        os.close(writer)
        master.wait_for(run.run.rollout_file(1, 2).exists)
        os.close(reader)
        assert master.end() == 0, master.text()
        assert master.err.read_text() == ""
        check_invariants(run, clean.ending)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    made = Scene(tmp_path_factory.mktemp("finished") / "run")
    made.finish()
    return made


@pytest.mark.parametrize("end", [" | true", ">&-", " 2>&-", " <&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("command", "code"),
    [("status", 0), ("status --json", 0), ("report", 0), ("plan", 0), ("status --help", 0), ("stop", 66)],
)
def test_a_command_that_prints_facts_ends_quietly_where_nobody_reads_them(
    command: str, code: int, end: str, finished: Scene
) -> None:
    name, *rest = command.split()
    line = shlex.join(["longhaul", name, "--run", finished.name, "--runs", str(finished.root / "runs"), *rest])
    done = in_shell(line + end, finished.root)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert done.stderr == ""


def test_doctor_whose_reader_leaves_ends_quietly(tmp_path: Path) -> None:
    assert in_shell("longhaul doctor | head -c 1", tmp_path).stderr == ""


def test_facts_that_a_full_disk_does_not_take_are_an_error(finished: Scene) -> None:
    line = shlex.join(["longhaul", "status", "--run", finished.name, "--runs", str(finished.root / "runs")])
    done = in_shell(line + " > /dev/full", finished.root)
    assert done.returncode == ExitCode.DISK
    assert done.stderr.splitlines()[0] == "error: the output cannot be written: No space left on device"


def test_a_closed_descriptor_is_not_given_to_the_store(tmp_path: Path) -> None:
    """What a library prints would be written into it."""
    with scene(tmp_path / "run") as run:
        master = run.launch(run.command("--plain"), "worker.before_update:4:sleep", preexec_fn=close_all_three)
        master.wait_for(lambda: run.head_step() == 2)
        held = {str(Path(f"/proc/{master.pid}/fd/{fd}").readlink()) for fd in (0, 1, 2)}
        assert held == {os.devnull}
        master.signal(signal.SIGKILL)


def close_all_three() -> None:
    for fd in (0, 1, 2):
        os.close(fd)
