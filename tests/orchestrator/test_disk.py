"""`run` if the disk is too small for what retention keeps: the message, the next command, the exit code."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from orchestrator.disk import Room, There, advice, disk_line, room_for, shape_on_disk
from profiles.disk import disk_plan, state_bytes
from profiles.errors import ExitCode
from profiles.load import load_profile
from state.layout import RunDir
from tests import REPOSITORY
from tests.faults.harness import scene
from tests.workers.harness import trained

PETABYTE = 10**15
FAKE = load_profile("fake").profile


def cli(folder: Path, *words: str, command: str = "run") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", command, "--profile", "fake", "--runs", str(folder / "runs"), *words],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_run_that_cannot_fit_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = cli(tmp_path, "--set", f"fake.state_bytes={PETABYTE}")
    assert done.returncode == ExitCode.DISK == 73
    assert "the disk is too small for run 'fake': it needs up to 9000000.0 GB, but " in done.stderr
    assert "are missing" in done.stderr
    assert "kept:  nothing was started" in done.stderr
    assert "--set retention.on_small_disk=warn" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_plan_says_what_the_disk_must_hold_and_whether_it_does(tmp_path: Path) -> None:
    fits = cli(tmp_path, "--json", "--set", "fake.state_bytes=1000000", command="plan")
    assert fits.returncode == 0
    told = json.loads(fits.stdout)["disk"]
    assert told["missing_bytes"] == 0
    assert told["total_bytes"] == sum(told["parts"].values())
    assert told["parts"]["head and ancestors"] == 3 * told["checkpoint_bytes"] == 3 * (1000000 + 65536)
    huge = cli(tmp_path, "--set", f"fake.state_bytes={PETABYTE}", command="plan")
    assert huge.returncode == ExitCode.DISK
    assert "disk: up to 9000000.0 GB in checkpoints of up to 1000000.0 GB" in huge.stdout
    other_machine = cli(tmp_path, "--card", "8", "--set", f"fake.state_bytes={PETABYTE}", command="plan")
    assert other_machine.returncode == 0
    warned = cli(
        tmp_path, "--set", f"fake.state_bytes={PETABYTE}", "--set", "retention.on_small_disk=warn", command="plan"
    )
    assert warned.returncode == 0


def test_the_plan_says_how_many_steps_a_job_has_time_for_and_how_many_jobs_a_run_takes(tmp_path: Path) -> None:
    """By the profile's limit or the command line's, and by the step time of a run that has begun."""
    limit = ("--set", "launch.time_limit_minutes=60")
    asked = cli(tmp_path, *limit, "--step-s", "300", "--start-s", "60", "--save-s", "5", command="plan")
    assert (
        "time: 20 steps; 10 in a job of 1 h 00 m at 300 s a step (start-up 1 m 00 s, margin 6 m 05 s): 2 jobs"
        in asked.stdout
    )
    other = ("--limit-h", "1", "--step-s", "300", "--start-s", "60", "--save-s", "5", "--json")
    assert json.loads(cli(tmp_path, *other, command="plan").stdout)["time"] == {
        "steps": 20, "steps_per_job": 10, "jobs": 2, "margin_s": 365,
    }  # fmt: skip
    unknown = cli(tmp_path, *limit, command="plan")
    assert "time: 20 steps; how many a job of 1 h 00 m has time for, --step-s tells" in unknown.stdout
    short = cli(tmp_path, "--limit-h", "0.1", "--step-s", "300", command="plan")
    assert "too short: save, step and warning take 6 min" in short.stdout
    assert "next:  launch.time_limit_minutes = " in short.stdout
    assert "in a job of" not in cli(tmp_path, command="plan").stdout
    with scene(tmp_path / "run", fake__step_s=0.2) as run:
        run.finish()
        assert "in a job of 1 h 00 m at 0.2" in run.ask("plan", *limit).stdout


def test_a_start_says_what_the_disk_must_hold(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.finish()
        assert "disk: up to 17 MB in checkpoints of up to 66 kB" in master.out.read_text()


def test_rollouts_that_are_kept_are_those_of_the_last_steps_whatever_their_cycle(tmp_path: Path) -> None:
    with scene(tmp_path / "run", run__max_cycles=3, run__steps_per_cycle=2, retention__keep_rollout_steps=3) as run:
        run.finish()
        files = sorted(path.name for path in run.run.cycles.glob("*/rollouts/*"))
        assert files == ["step-000004.jsonl", "step-000005.jsonl", "step-000006.jsonl"]


def test_what_a_run_occupies_already_need_not_be_free(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__state_bytes=1_000_000) as run:
        run.finish()
        found = room_for(FAKE, run.run)
        checkpoints = sum(path.stat().st_size for path in run.run.checkpoints.rglob("*") if path.is_file())
        assert checkpoints + (16 << 20) <= found.there.occupied <= checkpoints + (16 << 20) + (1 << 20)
        assert found.there.largest > 1_000_000
        assert found.there.for_good == 1  # of the seed phase
        assert "already used" in disk_line(found)
    assert room_for(FAKE, RunDir(tmp_path / "nothing" / "here")).there == There()


def test_the_advice_is_the_retention_that_fits(tmp_path: Path) -> None:
    plan = disk_plan(FAKE, 100)
    args = Namespace(run=None, profile="fake", overrides=["retention.keep_ancestors=5", "run.seed=3"])
    tight = Room(plan, There(largest=1 << 30), 9 << 30, tmp_path)
    line = advice(tight, FAKE, RunDir(tmp_path / "fake"), args).splitlines()[0]
    command, _, needs = line.partition("   ")
    assert shlex.split(command)[3:] == [
        "run", "--profile", "fake", "--set", "run.seed=3",
        "--set", "retention.keep_ancestors=1", "--set", "retention.keep_every=0",
    ]  # fmt: skip
    assert needs.startswith("(needs ")
    hopeless = Room(plan, There(largest=1 << 30), 1 << 20, tmp_path)
    assert advice(hopeless, FAKE, RunDir(tmp_path / "fake"), args).startswith(f"df -h {tmp_path}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["pocket-debug", pytest.param("azr-3b-qlora-debug", marks=pytest.mark.exhaustive)])
def test_a_real_checkpoint_has_the_size_that_the_plan_says(name: str, tmp_path: Path) -> None:
    profile = load_profile(name, ["run.steps_per_cycle=1"]).profile
    shape = shape_on_disk(profile)
    assert shape is not None
    last = tmp_path / "real" / trained(tmp_path / "real", profile, 1, warm=profile.run.worker).path
    stored = sum(path.stat().st_size for path in last.glob("*.safetensors"))
    # Beside the numbers a file has a header of some 130 bytes for each tensor, which counts in a model so small.
    headers = 3 * 130 * 14 * (shape.num_hidden_layers + 1)
    assert state_bytes(profile, shape) - 1024 <= stored <= state_bytes(profile, shape) + headers
    plan = room_for(profile, RunDir(tmp_path / "another")).plan
    assert plan is not None
    assert sum(path.stat().st_size for path in last.rglob("*")) <= plan.checkpoint
