"""A whole run on two ranks under the daemon: one rank is killed, and the run still completes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import REPOSITORY
from tests.workers.harness import wait_until

KNOBS = {"run.gpus": 2, "run.device": "cpu", "run.threads": 2, "run.max_cycles": 1, "retry.backoff_s": 0.1,
         "azr.seed_tasks": 1, "validation.examples_per_task": 2, "data.hand_on": "false"}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("profile", "tokens"),
    [("pocket-debug", 128), pytest.param("azr-3b-qlora-debug", 8, marks=pytest.mark.exhaustive)],
)
def test_a_run_trains_on_two_ranks_and_survives_the_loss_of_one(profile: str, tokens: int, tmp_path: Path) -> None:
    knobs = {**KNOBS, "sampling.max_completion_tokens": tokens}
    sets = [part for knob, value in knobs.items() for part in ("--set", f"{knob}={value}")]
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "run",
        "--plain",
        "--profile",
        profile,
        "--run",
        "two",
    ]
    master = subprocess.Popen(
        [*command, *sets], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    cycle = tmp_path / "runs/two/cycles/0001"
    try:
        assert master.stdout is not None
        said = ""
        while "cycle 1 of 1" not in said:
            line = master.stdout.readline()
            assert line, said
            said += line
        log = cycle / "attempt-1/rank-1.log"
        wait_until(lambda: log.exists() and "is ready" in log.read_text())
        (follower,) = followers(cycle / "attempt-1")
        os.kill(follower, signal.SIGKILL)
        said += master.communicate(timeout=200)[0]
    finally:
        master.kill()
        master.wait()
    assert master.returncode == 0, said
    assert "train attempt 1 failed: RANK (exit 79) rank 1 was ended by SIGKILL" in said
    assert "cycle 1: train attempt 2 succeeded" in said and "cycle 1: validate attempt 1 succeeded" in said
    assert not any(psutil.pid_exists(pid) for pid in (follower, *followers(cycle / "attempt-2")))


def followers(attempt: Path) -> list[int]:
    started = re.search(r"ranks 1 to 1 started: pids \[(\d+)\]", (attempt / "worker.log").read_text())
    assert started is not None
    return [int(started[1])]
