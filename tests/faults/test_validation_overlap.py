"""validation.overlap: the next cycle trains beside a validation, and whatever happens then changes nothing."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.faults.harness import Master, Scene, scene
from tests.faults.invariants import Ending, check_invariants, ending

PATIENT = {"timeouts__heartbeat_s": 600, "timeouts__step_min_s": 600, "timeouts__startup_s": 600}
KNOBS = {"run__max_cycles": 2, "run__steps_per_cycle": 4, "run__checkpoint_every": 3, **PATIENT}
OVERLAP = {"validation__overlap": 1, **KNOBS}
VALIDATION_STANDS_STILL = "worker.validating:1:stop"


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Ending:
    """The same run, with one worker after another."""
    with scene(tmp_path_factory.mktemp("apart") / "run", **KNOBS) as run:
        run.finish()
        return ending(run)


def pid_of(master: Master, what: str) -> int:
    """The process that the master says this of; 0: it has not yet."""
    found = re.search(rf"{what}.*\(pid (\d+)\)", master.text())
    return int(found[1]) if found is not None else 0


def held(run: Scene) -> tuple[Master, int, int]:
    """A master, the process of its validation, which stands still, and that of cycle 1, which waits before step 3's
    checkpoint."""
    master = run.start(VALIDATION_STANDS_STILL)
    validation = master.wait_for(lambda: pid_of(master, "cycle 0: validate attempt 1"))
    ahead = master.wait_for(lambda: pid_of(master, "cycle 1: begun ahead"))
    log = run.run.attempt(1, 1).events
    master.wait_until_stopped(validation)
    master.wait_for(lambda: log.exists() and log.read_text().count('"type":"step"') == 3)
    return master, validation, ahead


def go_on(master: Master, validation: int) -> None:
    os.kill(validation, signal.SIGCONT)
    assert master.end() == 0, master.text()


def wait_until_gone(master: Master, pid: int) -> None:
    master.wait_for(lambda: not psutil.pid_exists(pid))


def test_the_next_cycle_trains_beside_a_validation_and_nothing_of_it_counts_before_the_result(
    apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **OVERLAP) as run:
        master, validation, ahead = held(run)
        assert run.attempts() == [] and run.head_step() == 0
        assert [path.name[:13] for path in run.run.checkpoints.iterdir()] == ["c0000-s000000"]
        go_on(master, validation)
        assert pid_of(master, "cycle 1: train attempt 1") == ahead
        assert [state for state, _, _ in run.attempts()] == ["succeeded"]
        check_invariants(run, apart)


def test_a_worker_that_was_started_ahead_and_is_killed_costs_nothing_but_time(apart: Ending, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **OVERLAP) as run:
        master, validation, ahead = held(run)
        os.kill(ahead, signal.SIGKILL)
        master.wait_for_line("the worker that was started ahead ended")
        assert not run.run.attempt(1, 1).path.exists()
        go_on(master, validation)
        assert [state for state, _, _ in run.attempts()] == ["succeeded"]
        check_invariants(run, apart)


def test_a_validation_that_is_killed_is_repeated_without_a_worker_beside_it(apart: Ending, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **OVERLAP) as run:
        master, validation, ahead = held(run)
        os.kill(validation, signal.SIGKILL)
        wait_until_gone(master, ahead)
        assert master.end() == 0, master.text()
        assert [state for state, _, _ in run.attempts("validate", 0)] == ["failed", "succeeded"]
        check_invariants(run, apart)


def test_a_master_that_is_killed_beside_both_takes_up_the_cycle_with_its_validation(
    apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **OVERLAP) as run:
        master, _, _ = held(run)
        master.kill()
        run.wait_until_nobody_is_left()
        assert run.head_step() == 0
        run.finish()
        check_invariants(run, apart)


def test_a_stop_ends_both(apart: Ending, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **OVERLAP) as run:
        master, validation, _ = held(run)
        master.signal(signal.SIGINT)
        os.kill(validation, signal.SIGCONT)
        assert master.end() == 0, master.text()
        run.wait_until_nobody_is_left()
        assert run.head_step() == 0
        run.finish()
        check_invariants(run, apart)


def test_a_pause_ends_the_worker_that_was_started_ahead_once_the_validation_is_done(
    apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **OVERLAP) as run:
        master, validation, ahead = held(run)
        with ThreadPoolExecutor(1) as beside:
            pause = beside.submit(run.ask, "pause")  # it waits until nothing works any more
            master.wait_for(lambda: run.rows("SELECT 1 FROM requests WHERE kind='pause'"))
            os.kill(validation, signal.SIGCONT)
            assert pause.result().returncode == 0
        wait_until_gone(master, ahead)
        assert run.head_step() == 0
        assert run.ask("resume").returncode == 0
        assert master.end() == 0, master.text()
        check_invariants(run, apart)


def test_another_number_of_cycles_begins_the_cycle_anew(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **OVERLAP) as run:
        master, validation, ahead = held(run)
        assert run.ask("cycles", "+1").returncode == 0
        go_on(master, validation)
        assert pid_of(master, "cycle 1: train attempt 1") != ahead
        assert run.one("SELECT max(cycle) FROM cycles WHERE state='committed'") == 3
        check_invariants(run)


def test_without_overlap_nothing_is_begun_ahead(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **KNOBS) as run:
        master = run.start(VALIDATION_STANDS_STILL)
        validation = master.wait_for(lambda: pid_of(master, "cycle 0: validate attempt 1"))
        master.wait_until_stopped(validation)
        assert not run.run.attempt(1, 1).path.exists()
        go_on(master, validation)
        assert "begun ahead" not in master.text()
