"""A real job of verl on CPUs through the daemon: Ray, FSDP2 on two processes, our checkpoints. Minutes, not seconds."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from state.checkpoint import problem_with
from tests import REPOSITORY
from tests.workers.verl.test_settings import needs_verl
from workers.contract import ATTEMPT_VARIABLE

PATIENCE_S = 900.0


def master(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "orchestrator", *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    with (folder / "out.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def rows(run: Path, query: str) -> list[Any]:
    if not (run / "state.db").exists():
        return []
    with sqlite3.connect(f"file:{run / 'state.db'}?mode=ro", uri=True) as store:
        return list(store.execute(query))


def wait_for(found: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
    raise AssertionError(f"nothing within {PATIENCE_S:g} s: {log.read_text()[-3000:]}")


def of_run(run: Path) -> list[psutil.Process]:
    """Every living process that carries the mark of one of the run's attempts, the daemons of Ray too."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if ATTEMPT_VARIABLE in environment and str(run.parents[1]) in process.cwd() + str(environment):
                found.append(process)
        except psutil.Error:
            continue
    return found


def checkpoint_steps(run: Path) -> list[int]:
    return [step for (step,) in rows(run, "SELECT step FROM checkpoints ORDER BY step")]


@needs_verl
@pytest.mark.exhaustive
@pytest.mark.timeout(4 * PATIENCE_S)
def test_a_job_survives_the_kill_of_its_worker_saves_on_request_stops_and_goes_on(tmp_path: Path) -> None:
    run, log = tmp_path / "runs" / "r", tmp_path / "out.log"
    words = ["run", "--profile", "verl-debug", "--run", "r", "--set", "run.steps_per_cycle=6"]
    first = master(tmp_path, *words)
    try:
        wait_for(lambda: 2 in checkpoint_steps(run), first, log)
        (worker,) = [one for one in psutil.Process(first.pid).children() if _is_training(one)]
        worker.send_signal(signal.SIGKILL)
        # Back from step 2; then a checkpoint on request.
        wait_for(lambda: rows(run, "SELECT 1 FROM attempts WHERE role='train' AND attempt=2 AND cycle=1"), first, log)
        wait_for(lambda: rows(run, "SELECT 1 FROM steps WHERE step=3"), first, log)
        asked = [sys.executable, "-m", "orchestrator", "checkpoint", "--run", "r"]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        subprocess.run(asked, cwd=tmp_path, env=environment, check=True, timeout=PATIENCE_S, capture_output=True)
        assert checkpoint_steps(run)[-1] >= 3
        first.send_signal(signal.SIGINT)  # save after the step, and end
        assert first.wait(PATIENCE_S) == 0
    finally:
        first.kill()
        first.wait()
    assert of_run(run) == []
    stopped_at = checkpoint_steps(run)[-1]
    assert stopped_at >= 3
    second = master(tmp_path, "run", "--run", "r")
    try:
        assert second.wait(PATIENCE_S) == 0, log.read_text()[-3000:]
    finally:
        second.kill()
        second.wait()
    assert of_run(run) == []
    assert [step for (step,) in rows(run, "SELECT DISTINCT step FROM steps ORDER BY step")] == [1, 2, 3, 4, 5, 6]
    (head,) = sorted((run / "checkpoints").glob("c0001-s000006-*"))
    assert problem_with(head, deep=True) == ""
    assert json.loads((head / "verl.json").read_bytes())["gpus"] == 2
    # The answers came with the checkpoint: the validation of the cycle started nothing.
    assert (head / "answers.json").exists() and not (run / "cycles/0001/validate-1/verl/verl.log").exists()


def _is_training(process: psutil.Process) -> bool:
    return "workers" in process.cmdline() and bool(process.children())
