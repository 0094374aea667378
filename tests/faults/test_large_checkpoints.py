"""Checkpoints that are hashed after they became the head: what stays on disk, and what follows from a damaged one.

Masters here hash every checkpoint in their thread, whatever its size.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from profiles.disk import INLINE_BYTES, checkpoint_bytes, disk_plan
from profiles.load import load_profile
from tests.faults.conftest import Clean
from tests.faults.harness import KNOBS, Master, Scene, scene
from tests.faults.invariants import check_invariants, check_recovery, ending
from tests.faults.test_bad_input import tiny_disk

KILLED = -signal.SIGKILL
ALL_ARE_LARGE = (
    "import sys, orchestrator.commit as commit; commit.INLINE_BYTES = 0; "
    "from orchestrator.signals import SIGNALS; SIGNALS.install(); "
    "from orchestrator.cli import main; sys.exit(main())"
)


def large(run: Scene, crash: str = "", **knobs: object) -> Master:
    """A master for which every checkpoint is a large one. A log says which crash points it has reached."""
    _python, _m, _orchestrator, *words = run.command("--plain", **knobs)
    environment = {"LONGHAUL_CRASHPOINT_LOG": str(run.root / "hits")}
    return run.launch([sys.executable, "-c", ALL_ARE_LARGE, *words], crash, environment)


def finish_large(run: Scene) -> None:
    master = large(run)
    assert master.end() == 0, master.text()


def hits(run: Scene, name: str) -> int:
    log = run.root / "hits"
    return log.read_text().splitlines().count(name) if log.exists() else 0


def kept(run: Scene) -> list[tuple[int, int]]:
    """(step, verified) of what is committed, oldest first."""
    return run.rows("SELECT step, verified FROM checkpoints WHERE state='committed' ORDER BY step")


def flip_a_byte(directory: Path) -> None:
    path = directory / "weights.json"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(bytes(content))


# --- what stays on disk ----------------------------------------------------------------------------------------------


def test_twenty_large_checkpoints_leave_what_twenty_small_ones_leave(tmp_path: Path) -> None:
    knobs = {"run__max_cycles": 2, "run__steps_per_cycle": 20}
    with scene(tmp_path / "small", **knobs) as small, scene(tmp_path / "large", **knobs) as run:
        small.finish()
        master = large(run)
        assert master.end() == 0, master.text()
        assert run.one("SELECT count(*) FROM checkpoints") == 21
        assert kept(run) == kept(small)
        assert all(verified for _, verified in kept(run))
        assert ending(run) == ending(small)
        check_invariants(run)


@pytest.mark.timeout(900)
def test_checkpoints_of_300_MiB_keep_within_what_the_plan_says(tmp_path: Path) -> None:
    knobs = {"fake.state_bytes": 300 << 20, "run.steps_per_cycle": 8, "run.checkpoint_every": 1}
    profile = load_profile("fake", [f"{name}={value}" for name, value in {**KNOBS, **knobs}.items()]).profile
    one = checkpoint_bytes(profile, None)
    assert one is not None and one > INLINE_BYTES
    room = disk_plan(profile, one).total
    store_and_logs = 8 << 20
    with tiny_disk(tmp_path / "disk", (room + store_and_logs) >> 20), scene(tmp_path / "disk" / "run") as run:
        run.knobs = knobs
        master = run.start()
        assert master.process.wait(600) == 0, master.text()
        written = run.one("SELECT count(*) FROM checkpoints")
        assert written == 9
        assert written * one > room  # without pruning it would not have ended
        assert all(verified for _, verified in kept(run))
        assert len(kept(run)) <= 3  # the head, its parent, and the best


# --- a master that dies or is stopped meanwhile ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hash.begun", "hash.done"])
@pytest.mark.parametrize("nth", [1, *(pytest.param(nth, marks=pytest.mark.exhaustive) for nth in (2, 3))])
def test_a_master_killed_while_it_hashes_is_resumed_and_ends_the_same(
    name: str, nth: int, clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        master = large(run, f"{name}:{nth}")
        assert master.end() == KILLED, master.text()
        check_recovery(run, tmp_path / "copy", KNOBS["run.checkpoint_every"])
        finish_large(run)
        check_invariants(run, clean.ending)
        assert all(verified for _, verified in kept(run))


def test_a_disk_that_hangs_holds_up_neither_checkpoint_nor_stop_and_the_next_start_hashes(
    clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", fake__step_s=0.3) as run:
        master = large(run, "hash.begun:1:sleep:3600")
        master.wait_for(lambda: hits(run, "hash.begun"))
        master.wait_for(lambda: run.head_step() >= 2)
        asked = run.ask("checkpoint")
        assert asked.returncode == 0, asked.stderr
        master.signal(signal.SIGTERM)
        assert master.end() == 0, master.text()
        assert len(kept(run)) >= 2
        assert not any(verified for _, verified in kept(run))
        finish_large(run)
        check_invariants(run, clean.ending)
        assert all(verified for _, verified in kept(run))


# --- a checkpoint that turns out damaged -----------------------------------------------------------------------------


def quarantined(run: Scene) -> list[str]:
    return sorted(path.name.split("-")[1] for path in run.run.quarantine.glob("c*") if path.suffix != ".WHY")


def test_a_damaged_head_is_replaced_by_the_next_checkpoint_of_the_worker_that_wrote_it(
    clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", fake__step_s=1) as run:
        master = large(run, "hash.begun:2:stop")  # the first one is step 0
        master.wait_until_stopped()
        worker = master.worker_pid()
        os.kill(worker, signal.SIGSTOP)
        assert run.head_step() == 2
        flip_a_byte(run.head_dir())
        master.signal(signal.SIGCONT)
        master.wait_for_line("is DAMAGED: weights.json was changed")
        assert run.head_step() == 2
        os.kill(worker, signal.SIGCONT)
        assert master.end() == 0, master.text()
        assert quarantined(run) == ["s000002"]
        assert run.attempts() == [("succeeded", 0, "")]
        assert ending(run) == clean.ending


def test_a_checkpoint_that_is_damaged_when_it_is_reported_costs_nothing(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.start("ckpt.after_rename:2:stop")  # stops the worker before it reports step 2
        (path,) = master.wait_for(lambda: list(run.run.checkpoints.glob("c0001-s000002-*")))
        worker = master.wait_until_stopped(master.worker_pid())
        flip_a_byte(path)
        worker.send_signal(signal.SIGCONT)
        assert master.end() == 0, master.text()
        assert f"checkpoint {path.name} does not verify" in master.out.read_text()
        assert quarantined(run) == ["s000002"]
        assert run.attempts() == [("succeeded", 0, "")]
        check_invariants(run, clean.ending)


def test_a_damaged_head_that_no_worker_can_replace_sends_the_run_back_to_the_one_before(
    clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        master = large(run, "commit.after:4:stop")  # if step 2 or 4 is the head for a moment only, nobody hashes it
        master.wait_until_stopped()
        flip_a_byte(next(run.run.checkpoints.glob("c0001-s000006-*")))
        master.signal(signal.SIGCONT)
        master.wait_for_line("DAMAGED HEAD, going on from")
        assert master.end() == 0, master.text()
        assert quarantined(run) == ["s000006"]
        check_invariants(run, clean.ending)


def test_a_worker_that_refuses_a_damaged_head_does_not_end_the_run(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.start("commit.after:4:stop")  # a small one: it was hashed a moment before
        master.wait_until_stopped()
        flip_a_byte(next(run.run.checkpoints.glob("c0001-s000006-*")))
        master.signal(signal.SIGCONT)
        assert master.end() == 0, master.text()
        assert run.attempts("validate")[0][2] == "INPUT"
        assert "DAMAGED HEAD, going on from" in master.out.read_text()
        check_invariants(run, clean.ending)


def test_without_any_checkpoint_that_verifies_the_run_ends_and_touches_nothing(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = large(run, "hash.begun:1:stop")  # step 0, before the first cycle
        master.wait_until_stopped()
        (only,) = run.run.checkpoints.glob("c0000-s000000-*")
        flip_a_byte(only)
        for child in psutil.Process(master.pid).children():
            child.kill()  # nobody who could replace it
        master.signal(signal.SIGCONT)
        assert master.end() == 74, master.text()
        assert only.exists()
        assert "none of the 1 checkpoints of this run can be used" in master.err.read_text()
