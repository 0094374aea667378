"""Each start of a master has a random number, which its lock, its workers, their sandbox and their messages hold."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.faults import harness
from tests.faults.harness import Master, Scene, scene
from tests.faults.test_pocket import command
from workers.contract import ATTEMPT_VARIABLE


def incarnation(run: Scene) -> str:
    """Of the master that lives, as its lock says."""
    return str(json.loads(run.run.lock.read_bytes())["incarnation"])


def tokens(run: Scene) -> set[str]:
    """In the environments of all processes that belong to the run."""
    found = set()
    for process in run.processes():
        try:
            found.add(process.environ().get(ATTEMPT_VARIABLE, "").partition("/")[2])
        except psutil.Error:
            continue
    return found - {"", "tracker"}  # that one reads the store, and outlives nobody


def check(run: Scene, master: Master) -> str:
    number = incarnation(run)
    found = master.wait_for(lambda: tokens(run))
    assert len(number) == 8 and all(token.startswith(number) for token in found), (number, found)
    return number


def test_a_master_its_lock_and_its_workers_hold_one_number_and_the_next_start_another(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.3) as run:
        first = run.start()
        first.wait_for(lambda: run.head_step() >= 0)
        before = check(run, first)
        first.signal(signal.SIGKILL)
        first.end()
        run.wait_until_nobody_is_left()
        second = run.start(fake__step_s=0.3)
        second.wait_for(lambda: run.one("SELECT count(*) FROM steps"))
        assert check(run, second) != before
        assert second.end() == 0, second.text()
        assert len({token[:8] for (token,) in run.rows("SELECT token FROM attempts")}) == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_so_do_the_processes_of_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "PATIENCE_S", 250.0)
    with scene(tmp_path / "run") as run:
        master = run.launch(command(run))
        master.wait_for(lambda: len(run.processes()) >= 3)
        check(run, master)
