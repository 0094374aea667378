"""A disk that fills up under a run: the run waits, says what it needs, and goes on by itself."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from state import durable
from tests.faults.conftest import Clean
from tests.faults.harness import Master, Scene, scene
from tests.faults.invariants import check_invariants
from tests.faults.test_bad_input import STOPS, fill, tiny_disk, told

MEGABYTES = 48


@contextmanager
def paused(folder: Path) -> Iterator[tuple[Scene, Master, Path]]:
    """A run that waits for room: its scene, its master, and the file that fills the disk."""
    outside = Scene(folder / "outside")  # what it prints does not go to that disk
    with tiny_disk(folder / "disk", MEGABYTES), scene(folder / "disk" / "run", fake__step_s=0.2) as run:
        try:
            master = outside.launch(run.command("--plain"))
            master.wait_for_line("checkpoint of step 2 is durable")
            filler = folder / "disk" / "filler"
            with filler.open("wb", buffering=0) as file:
                fill(file.fileno())
            master.wait_for_line("the run goes on by itself once there is room")
            yield run, master, filler
        finally:
            outside.clean_up()


def test_a_run_pauses_on_a_full_disk_and_goes_on_when_there_is_room(clean: Clean, tmp_path: Path) -> None:
    with paused(tmp_path) as (run, master, filler):
        assert "are needed in" in master.wait_for_line("are free;")
        assert run.processes() == []  # nobody trains, so a GPU would be free
        status = run.ask("status")
        assert "state       paused: the disk is full" in status.stdout, status
        refused = run.ask("checkpoint")
        assert refused.returncode == 1 and "no checkpoint: the disk is full" in refused.stdout
        filler.unlink()
        assert master.end() == 0, master.text()
        assert "are free now; the run goes on" in master.text()
        check_invariants(run, clean.ending)


@pytest.mark.parametrize("how", ["Ctrl+C", "stop"])
def test_a_paused_run_can_be_ended_and_resumed_later(how: str, clean: Clean, tmp_path: Path) -> None:
    with paused(tmp_path) as (run, master, filler):
        if how == "stop":
            assert "stopped; the head is step" in run.ask("stop").stdout
        else:
            master.signal(signal.SIGINT)
        assert master.end() == 73, master.text()
        told(master)
        assert "state       failed: " in run.ask("status").stdout
        filler.unlink()
        run.finish()
        check_invariants(run, clean.ending)


def test_a_paused_run_whose_master_is_killed_is_interrupted_and_resumes(clean: Clean, tmp_path: Path) -> None:
    with paused(tmp_path) as (run, master, filler):
        master.kill()
        assert "state       interrupted" in run.ask("status").stdout
        filler.unlink()
        run.finish()
        check_invariants(run, clean.ending)


def test_a_checkpoint_that_will_not_fit_is_not_begun(clean: Clean, tmp_path: Path) -> None:
    outside = Scene(tmp_path / "outside")
    with tiny_disk(tmp_path / "disk", 128), scene(tmp_path / "disk" / "run", **STOPS) as run:
        run.knobs |= {"fake.state_bytes": 20 << 20}
        master = outside.launch(run.command("--plain"), "worker.before_update:4:stop")  # between two checkpoints
        master.wait_for_line("checkpoint of step 2 is durable")
        worker = master.wait_until_stopped(master.worker_pid())
        filler = tmp_path / "disk" / "filler"
        left = durable.free_bytes(tmp_path / "disk") - (10 << 20)
        filler.write_bytes(bytes(left))
        worker.resume()
        assert master.end() == 73, master.text()
        told(master, "a checkpoint of 21 MB does not fit")
        assert not list(run.run.checkpoints.glob(".staging-*"))
        filler.unlink()
        run.finish()
