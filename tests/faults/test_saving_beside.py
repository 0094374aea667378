"""A checkpoint becomes durable while the next step's rollouts are drawn, and before anything is trained on them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from tests.faults.conftest import Clean
from tests.faults.harness import Master, Scene, scene
from tests.faults.invariants import check_invariants

OF_STEP_2 = "ckpt.manifest_written:2:{}"
"""The first checkpoint is that of the seeds."""


def saving(run: Scene) -> tuple[Master, int]:
    """A master and its worker, which has drawn the rollouts of step 3 while the checkpoint of step 2 does not end."""
    log = run.root / "hits"
    master = run.start(OF_STEP_2.format("sleep"), env={"LONGHAUL_CRASHPOINT_LOG": str(log)})

    def hits() -> Counter[str]:
        return Counter(log.read_text().split() if log.exists() else ())

    master.wait_for(lambda: hits()["worker.rollouts_done"] == 3 and hits()["ckpt.manifest_written"] == 2)
    assert hits()["worker.before_update"] == 2
    assert run.head_step() == 0
    return master, master.worker_pid()


def test_rollouts_are_drawn_beside_a_checkpoint_and_a_kill_loses_no_more_steps_than_without(
    clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        master, worker = saving(run)
        os.kill(worker, signal.SIGKILL)
        assert master.end() == 0, master.text()
        assert [state for state, _, _ in run.attempts()] == ["failed", "succeeded"]
        check_invariants(run, clean.ending)


def test_a_master_that_is_killed_meanwhile_repeats_what_no_checkpoint_holds(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master, _ = saving(run)
        master.kill()
        run.wait_until_nobody_is_left()
        assert run.head_step() == 0
        run.finish()
        check_invariants(run, clean.ending)


def test_a_checkpoint_that_cannot_be_made_durable_ends_the_attempt_before_its_next_update(
    clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        hits = run.root / "hits"
        master = run.start(OF_STEP_2.format("eio"), env={"LONGHAUL_CRASHPOINT_LOG": str(hits)})
        master.end()
        first = hits.read_text().split("attempt.before_close")[2]  # after the seeds and their validation
        assert Counter(first.split())["worker.before_update"] == 2
        run.finish()
        check_invariants(run, clean.ending)
