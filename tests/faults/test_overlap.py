"""run.overlap: a step's rollouts are drawn beside the update before it, and no kill changes what a run ends with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import Master, Scene, scene
from tests.faults.invariants import Ending, check_invariants, ending

PATIENT = {"timeouts__heartbeat_s": 600, "timeouts__step_min_s": 600, "timeouts__startup_s": 600}
OVERLAP = {"run__overlap": 1, **PATIENT}
STUCK = {"fake__fault": "no_progress:4", **OVERLAP}
"""The first attempt gets stuck in the thread that draws step 4, beside the update of step 3."""
STATE = ("ahead.json", "weights.json", "optimizer.json", "rng.json", "buffer.json")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Ending:
    with scene(tmp_path_factory.mktemp("unbroken") / "run", **OVERLAP) as run:
        run.finish()
        check_invariants(run)
        return ending(run)


def rollouts(run: Scene, step: int, cycle: int = 1) -> list[dict[str, Any]]:
    lines = run.run.rollout_file(cycle, step).read_text().splitlines()
    return [json.loads(line) for line in lines[1:-1]]


def weights_after(run: Scene) -> dict[int, float]:
    """The fake trainer reports its weight as the reward."""
    return {0: 0.0, **dict(run.rows("SELECT step, reward FROM trained_steps"))}


def is_stuck(run: Scene) -> bool:
    """Whether the worker draws step 4: the rollouts of step 3 are there, and none follow."""
    return run.run.rollout_file(1, 3).exists() and run.head_step() == 2


# --- what is drawn when ----------------------------------------------------------------------------------------------


def test_rollouts_are_drawn_with_the_weights_before_the_last_update(tmp_path: Path) -> None:
    with scene(tmp_path / "run", retention__keep_rollout_steps=10, **OVERLAP) as run:
        run.finish()
        weights = weights_after(run)
        drawn_with = {step: rollouts(run, step)[0]["weight"] for step in range(1, 7)}
        assert drawn_with == {1: weights[0]} | {step: weights[step - 2] for step in range(2, 7)}


def test_the_first_rollouts_of_a_cycle_are_drawn_with_the_weights_that_train_on_them(tmp_path: Path) -> None:
    knobs = {"run__max_cycles": 2, "run__steps_per_cycle": 3, "retention__keep_rollout_steps": 10}
    with scene(tmp_path / "run", **knobs, **OVERLAP) as run:
        run.finish()
        weights = weights_after(run)
        assert rollouts(run, 4, cycle=2)[0]["weight"] == weights[3]
        assert rollouts(run, 5, cycle=2)[0]["weight"] == weights[3]
        assert json.loads((run.head_dir() / "ahead.json").read_text()) == {"step": 0, "records": None}


def test_a_checkpoint_holds_the_rollouts_that_were_drawn_ahead(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **STUCK) as run:
        run.start().wait_for(lambda: is_stuck(run))
        ahead = json.loads((run.head_dir() / "ahead.json").read_text())
        assert ahead["step"] == 3 and ahead["records"] == rollouts(run, 3)


def test_without_overlap_a_run_has_no_file_and_no_thread_for_it(tmp_path: Path) -> None:
    with scene(tmp_path / "run", retention__keep_rollout_steps=10, **PATIENT) as run:
        run.finish()
        assert not (run.head_dir() / "ahead.json").exists()
        assert "weight" not in rollouts(run, 3)[0]


# --- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        "worker.rollouts_half:3",
        "worker.rollouts_done:4",
        "worker.before_update:4",
        "worker.after_update:3",
        "ckpt.files_written:3",
        "ckpt.after_rename:3",
    ],
)
def test_a_worker_killed_at_any_point_changes_nothing(point: str, unbroken: Ending, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **OVERLAP) as run:
        run.finish(point)
        assert run.attempts()[0][0] == "failed"
        check_invariants(run, unbroken)


def kill_the_worker(run: Scene, master: Master) -> None:
    os.kill(master.worker_pid(), signal.SIGKILL)
    assert master.end() == 0, master.text()


def kill_the_master(run: Scene, master: Master) -> None:
    master.kill()
    run.wait_until_nobody_is_left()


def lose_the_rollouts(run: Scene, master: Master) -> None:
    kill_the_master(run, master)
    run.run.rollout_file(1, 3).unlink()


def damage_the_rollouts(run: Scene, master: Master) -> None:
    kill_the_master(run, master)
    path = run.run.rollout_file(1, 3)
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(kill_the_worker, id="kill -9 of the worker"),
        pytest.param(kill_the_master, id="kill -9 of the master"),
        pytest.param(lose_the_rollouts, id="kill -9, and a rollout file is lost"),
        pytest.param(damage_the_rollouts, id="kill -9, and a rollout file is torn"),
    ],
)
def test_a_kill_while_rollouts_are_under_way_changes_nothing(
    disturb: Callable[[Scene, Master], None], unbroken: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **STUCK) as run:
        master = run.start()
        master.wait_for(lambda: is_stuck(run))
        disturb(run, master)
        if run.head_step() < 6:
            run.finish()
        check_invariants(run, unbroken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1], ids=["a stop", "a checkpoint and kill -9"])
def test_what_is_asked_of_a_run_between_checkpoints_changes_nothing(
    number: int, unbroken: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", fake__step_s=0.5, run__checkpoint_every=6, **OVERLAP) as run:
        master = run.start()
        master.wait_for(lambda: run.run.rollout_file(1, 3).exists())
        master.signal(number)
        master.wait_for(lambda: 3 <= run.head_step() < 6)
        assert json.loads((run.head_dir() / "ahead.json").read_text())["step"] == run.head_step() + 1
        if number == signal.SIGINT:
            assert master.end() == 0, master.text()
        else:
            kill_the_master(run, master)
        run.finish(run__checkpoint_every=2)
        assert ending(run) == unbroken


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_repeated_update_uses_what_was_drawn_beside_its_first_try(tmp_path: Path) -> None:
    """The fake update runs out of memory once the thread draws."""
    states = []
    for name, fault in (("whole", ""), ("short of memory", "oom:3")):
        with scene(tmp_path / name, fake__fault=fault, **OVERLAP) as run:
            run.finish()
            assert [event["shrinks"] for event in run.events("oom_retry")] == ([1] if fault else [])
            states.append([(run.head_dir() / file).read_bytes() for file in STATE])
    assert states[0] == states[1]


@pytest.mark.parametrize("fault", ["error:4", "enospc:4", "exit:4"])
def test_an_error_of_the_thread_ends_the_attempt_as_one_of_the_step_does(
    fault: str, unbroken: Ending, tmp_path: Path
) -> None:
    found = []
    for overlap in (0, 1):
        with scene(tmp_path / str(overlap), fake__fault=fault, **(OVERLAP | {"run__overlap": overlap})) as run:
            run.launch(run.command("--plain")).end()
            found.append(run.attempts()[0])
            if run.head_step() < 6:
                run.finish()
            if overlap:
                check_invariants(run, unbroken)
    assert found[0] == found[1] and found[0][0] == "failed"


def test_the_end_of_the_data_ends_the_run_after_the_step_that_found_it(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="exhausted:4", **OVERLAP) as run:
        run.finish(code=78)
        assert run.head_step() == 3
