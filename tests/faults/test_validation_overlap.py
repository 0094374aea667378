"""validation.overlap: the next cycle's worker loads beside training, and trains beside a validation. Whatever happens
then changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import ExitCode
from tests.faults.harness import Master, Scene, in_any_memory, scene
from tests.faults.invariants import Ending, check_invariants, ending

PATIENT = {"timeouts__heartbeat_s": 600, "timeouts__step_min_s": 600, "timeouts__startup_s": 600}
KNOBS = {"run__max_cycles": 2, "run__steps_per_cycle": 4, "run__checkpoint_every": 3, **PATIENT}
OVERLAP = {"validation__overlap": 1, **KNOBS}
VALIDATION_STANDS_STILL = "worker.validating:1:stop"
TRAINING_STANDS_STILL = "worker.after_update:3:stop"
ENDING_STANDS_STILL = "worker.leaving:3:stop"
"""Of the workers whose every word is sent: those of cycle 0 come first."""
SLOW = {"fake__step_s": 0.3, **OVERLAP}
"""The master is told of a finished step before the next one stands still."""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Ending:
    """The same run, with one worker after another."""
    with scene(tmp_path_factory.mktemp("apart") / "run", **KNOBS) as run:
        run.finish()
        return ending(run)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker is left out because other tests have taken the memory."""
    command = Scene.command
    monkeypatch.setattr(Scene, "command", lambda *given, **knobs: in_any_memory(command(*given, **knobs)))


def pid_of(master: Master, what: str) -> int:
    """The process that the master says this of; 0: it has not yet."""
    found = re.search(rf"{what}.*\(pid (\d+)\)", master.text())
    return int(found[1]) if found is not None else 0


def held(run: Scene) -> tuple[Master, int, int]:
    """A master, the process of its validation, which stands still, and that of cycle 1, which has done all of its steps
    and waits before the last one's checkpoint. The one of step 3 is not made."""
    master = run.start(VALIDATION_STANDS_STILL)
    validation = master.wait_for(lambda: pid_of(master, "cycle 0: validate attempt 1"))
    ahead = master.wait_for(lambda: pid_of(master, "cycle 1: begun ahead"))
    log = run.run.attempt(1, 1).events
    master.wait_until_stopped(validation)
    master.wait_for(lambda: log.exists() and log.read_text().count('"type":"step"') == 4)
    return master, validation, ahead


def loading(run: Scene, still: str = TRAINING_STANDS_STILL, **knobs: Any) -> tuple[Master, int, int]:
    """A master, the process of cycle 1's training, which stands still at that point, and that which has loaded for
    cycle 2."""
    master = run.start(still, env={"LONGHAUL_CRASHPOINT_LOG": str(run.root / "hits")}, **knobs)
    ahead = master.wait_for(lambda: pid_of(master, "cycle 2: loads ahead"))
    training = master.wait_for(lambda: pid_of(master, "cycle 1: train attempt 1"))
    master.wait_until_stopped(training)
    master.wait_for(lambda: "worker.loaded" in (run.root / "hits").read_text())
    return master, training, ahead


def ending_beside(run: Scene) -> tuple[Master, int, int]:
    """A master, the process of cycle 1's training, which has reported its result and does not end, and that of cycle 2,
    which has begun to train."""
    master = run.start(ENDING_STANDS_STILL)
    training = master.wait_for(lambda: pid_of(master, "cycle 1: train attempt 1"))
    ahead = master.wait_for(lambda: pid_of(master, "cycle 2: begun ahead"))
    master.wait_until_stopped(training)
    log = run.run.attempt(2, 1).events
    master.wait_for(lambda: log.exists() and log.read_text().count('"type":"step"') == 2)
    assert run.rows("SELECT state FROM attempts WHERE cycle=1 AND role='train'") == [("running",)]
    assert run.rows("SELECT 1 FROM attempts WHERE cycle=1 AND role='validate' OR cycle=2") == []
    return master, training, ahead


def go_on(master: Master, still: int, code: int = 0) -> None:
    os.kill(still, signal.SIGCONT)
    assert master.end() == code, master.text()


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


def test_a_checkpoint_that_is_due_beside_a_validation_is_made_after_its_result_and_no_step_waits_for_it(
    tmp_path: Path,
) -> None:
    with scene(tmp_path / "run", **{**SLOW, "run__max_cycles": 1, "run__steps_per_cycle": 12}) as run:
        master = run.start(VALIDATION_STANDS_STILL)
        validation = master.wait_for(lambda: pid_of(master, "cycle 0: validate attempt 1"))
        log = run.run.attempt(1, 1).events
        master.wait_until_stopped(validation)
        master.wait_for(lambda: log.exists() and log.read_text().count('"type":"step"') >= 4)
        assert run.head_step() == 0
        go_on(master, validation)
        first, *others = [step for (step,) in run.rows("SELECT step FROM checkpoints WHERE cycle=1 ORDER BY step")]
        assert 4 <= first < 12 and others == [step for step in (6, 9, 12) if step > first]
        assert [state for state, _, _ in run.attempts()] == ["succeeded"]
        check_invariants(run)


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
        assert not re.search("begun ahead|loads ahead", master.text())


def test_the_worker_of_the_next_cycle_loads_beside_training_and_trains_once_its_head_is_there(
    apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = loading(run)
        events = run.run.attempt(2, 1).events.read_text()
        assert '"type":"started"' in events and '"type":"step"' not in events
        assert len(run.rows("SELECT 1 FROM attempts WHERE cycle=2")) == 0
        go_on(master, training)
        assert pid_of(master, "cycle 2: begun ahead") == pid_of(master, "cycle 2: train attempt 1") == ahead
        head = run.one("SELECT checkpoint_id FROM checkpoints WHERE cycle=1 AND step=4")
        assert json.loads(run.run.attempt(2, 1).spec.read_bytes())["head"]["checkpoint_id"] == head
        assert [state for state, _, _ in run.attempts(cycle=2)] == ["succeeded"]
        check_invariants(run, apart)


def test_the_next_cycle_trains_while_the_process_of_the_one_before_ends_and_its_validation_waits_for_that_end(
    apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = ending_beside(run)
        go_on(master, training)
        text = master.text()
        assert text.count("cycle 2: begun ahead") == 1 and pid_of(master, "cycle 2: train attempt 1") == ahead
        assert text.index("cycle 1: train attempt 1 succeeded") < text.index("cycle 1: validate attempt 1 of")
        assert [state for state, _, _ in run.attempts()] == ["succeeded"]
        check_invariants(run, apart)


def test_a_process_that_is_killed_while_it_ends_has_done_its_cycle(apart: Ending, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = ending_beside(run)
        os.kill(training, signal.SIGKILL)
        wait_until_gone(master, ahead)
        assert master.end() == 0, master.text()
        assert [state for state, _, _ in run.attempts()] == ["succeeded"]
        assert run.rows("SELECT exit_code FROM attempts WHERE cycle=1 AND role='train'") == [(-signal.SIGKILL,)]
        check_invariants(run, apart)


def test_a_worker_that_is_killed_beside_a_process_that_ends_begins_no_second_time_before_the_result(
    apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = ending_beside(run)
        os.kill(ahead, signal.SIGKILL)
        master.wait_for_line("the worker that was started ahead ended")
        go_on(master, training)
        assert master.text().count("cycle 2: begun ahead") == 1
        check_invariants(run, apart)


def test_a_master_that_is_killed_while_a_process_ends_takes_up_the_next_cycle(apart: Ending, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, _ = ending_beside(run)
        master.kill()
        os.kill(training, signal.SIGCONT)
        run.wait_until_nobody_is_left()
        assert run.head_step() == 4
        run.finish()
        check_invariants(run, apart)


def test_a_paused_run_does_not_begin_the_next_cycle_while_a_process_ends(apart: Ending, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, _ = loading(run, "worker.after_update:4:stop")
        with ThreadPoolExecutor(1) as beside:
            pause = beside.submit(run.ask, "pause")
            master.wait_for(lambda: run.rows("SELECT 1 FROM requests WHERE kind='pause'"))
            os.kill(training, signal.SIGCONT)
            assert pause.result().returncode == 0
        assert "cycle 2: begun ahead" not in master.text()
        assert run.ask("resume").returncode == 0
        assert master.end() == 0, master.text()
        check_invariants(run, apart)


def test_a_worker_that_has_loaded_takes_a_cycle_that_follows_without_a_validation(tmp_path: Path) -> None:
    knobs = {**SLOW, "validation__every": 2}
    with scene(tmp_path / "apart", **{**knobs, "validation__overlap": 0}) as run:
        run.finish()
        expected = ending(run)
    with scene(tmp_path / "run", **knobs) as run:
        master, training, ahead = loading(run)
        go_on(master, training)
        assert run.rows("SELECT step FROM validations WHERE cycle=1") == []
        assert pid_of(master, "cycle 2: train attempt 1") == ahead
        check_invariants(run, expected)


def test_a_worker_that_is_killed_after_it_has_loaded_costs_nothing_but_time(apart: Ending, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = loading(run)
        os.kill(ahead, signal.SIGKILL)
        master.wait_for_line("the worker that was started ahead ended")
        assert not run.run.attempt(2, 1).path.exists()
        go_on(master, training)
        assert pid_of(master, "cycle 2: train attempt 1") not in (0, ahead)
        check_invariants(run, apart)


def test_training_that_is_killed_is_repeated_without_a_worker_that_has_loaded_beside_it(
    apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = loading(run)
        os.kill(training, signal.SIGKILL)
        wait_until_gone(master, ahead)
        assert master.end() == 0, master.text()
        assert [state for state, _, _ in run.attempts(cycle=1)] == ["failed", "succeeded"]
        check_invariants(run, apart)


def test_a_master_that_is_killed_beside_a_worker_that_has_loaded_takes_up_the_cycle(
    apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, _ = loading(run)
        master.kill()
        os.kill(training, signal.SIGCONT)
        run.wait_until_nobody_is_left()
        run.finish()
        check_invariants(run, apart)


@pytest.mark.parametrize(
    ("begun", "head"), [(loading, 3), (ending_beside, 4)], ids=["loaded", "training beside a process that ends"]
)
def test_a_stop_ends_a_worker_that_was_started_ahead(apart: Ending, tmp_path: Path, begun: Any, head: int) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = begun(run)
        master.signal(signal.SIGINT)
        wait_until_gone(master, ahead)
        go_on(master, training)
        run.wait_until_nobody_is_left()
        assert run.head_step() == head
        run.finish()
        check_invariants(run, apart)


def test_a_worker_that_has_loaded_for_another_profile_is_not_used(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = loading(run)
        assert run.ask("cycles", "+1").returncode == 0
        go_on(master, training)
        assert pid_of(master, "cycle 2: train attempt 1") not in (0, ahead)
        check_invariants(run)


def test_a_cycle_whose_problems_end_early_is_not_followed_by_the_worker_that_has_loaded(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        master, training, ahead = loading(run, fake__fault="exhausted:4")
        go_on(master, training, ExitCode.STAGNANT)
        assert not psutil.pid_exists(ahead) and run.head_step() == 3
        check_invariants(run)


@pytest.mark.parametrize("point", ["worker.loaded", "ahead.named", "worker.leaving"])
def test_a_kill_when_a_worker_has_loaded_and_when_it_is_told_its_head_changes_nothing(
    point: str, apart: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **SLOW) as run:
        hits = run.root / "hits"
        master = run.start(f"{point}:1", env={"LONGHAUL_CRASHPOINT_LOG": str(hits)})
        code = master.end()
        assert point in hits.read_text() and code == (0 if point.startswith("worker.") else -signal.SIGKILL)
        run.wait_until_nobody_is_left()
        run.finish()
        check_invariants(run, apart)


def test_a_run_s_last_cycle_has_no_worker_that_loads_beside_it(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **{**SLOW, "run__max_cycles": 1}) as run:
        assert "loads ahead" not in run.finish().text()


def test_the_checkpoint_with_which_a_worker_loads_is_not_pruned(tmp_path: Path) -> None:
    """Every step has a checkpoint, and the third one is the oldest that stays."""
    knobs = {**SLOW, "run__checkpoint_every": 1, "run__steps_per_cycle": 8, "run__max_cycles": 3}
    with scene(tmp_path / "run", **knobs) as run:
        master = run.start("worker.after_started:6:stop")  # of cycle 3, which loads while cycle 2 trains
        ahead = master.wait_for(lambda: pid_of(master, "cycle 3: loads ahead"))
        master.wait_until_stopped(ahead)
        loads_with = json.loads(run.run.attempt(3, 1).spec.read_bytes())["head"]
        directory = run.run.root / loads_with["path"]
        assert loads_with["step"] < 14
        master.wait_for(lambda: run.head_step() == 15)
        assert directory.exists()
        go_on(master, ahead)
        assert pid_of(master, "cycle 3: train attempt 1") == ahead
        assert not directory.exists()
        check_invariants(run)
