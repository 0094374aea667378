"""What rots on the disk long after it was written: found while a run trains, and by `doctor --run`."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from orchestrator.hashing import Hasher
from orchestrator.verifying import NEVER, SCRUB_AGAIN_S, next_to_scrub
from state.checkpoint import Saved, stage
from state.history import CheckpointFacts
from state.layout import RunDir
from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants, ending
from tests.faults.test_large_checkpoints import flip_a_byte, quarantined

MB = 1_000_000


def facts(name: str, step: int) -> CheckpointFacts:
    return CheckpointFacts(name, None, 0, step, f"checkpoints/{name}", "", MB, verified=True)


A, B, C = facts("a", 1), facts("b", 2), facts("c", 3)


@pytest.mark.parametrize(
    ("read_at", "now", "expected"),
    [
        pytest.param({"a": NEVER, "b": NEVER, "c": NEVER}, 0.0, C, id="of those never read, the newest"),
        pytest.param({"a": NEVER, "b": NEVER, "c": 0.0}, 1.0, B, id="then the next"),
        pytest.param({"a": 0.0, "b": 1.0, "c": 2.0}, 3.0, None, id="none within a day"),
        pytest.param({"a": 5.0, "b": 1.0, "c": 2.0}, 2.0 + SCRUB_AGAIN_S, B, id="each day the one read longest ago"),
    ],
)
def test_what_is_scrubbed_next(read_at: dict[str, float], now: float, expected: CheckpointFacts | None) -> None:
    assert next_to_scrub([A, B, C], read_at, now) == expected


# --- the thread ------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> tuple[RunDir, Saved]:
    run = RunDir(tmp_path)
    made = stage(
        run, run_id="r", parent=None, cycle=0, attempt=1, token="t", step=0, profile_sha256="", versions={},
        write=lambda folder: (folder / "weights").write_bytes(os.urandom(4 << 20)) and None,
    )  # fmt: skip
    return run, made


def of(saved: Saved) -> CheckpointFacts:
    return CheckpointFacts(saved.checkpoint_id, None, 0, 0, saved.path, saved.digest, saved.manifest.bytes, True)


def hash_all(run: RunDir, made: Saved, **how: float) -> float:
    """Seconds until the result, which must be good."""
    import threading

    done = threading.Event()
    hasher = Hasher(run, done.set)
    began = time.monotonic()
    hasher.start(of(made), **how)
    assert done.wait(60)
    found = hasher.take()
    assert found is not None and not found.damage and not found.obstacle
    return time.monotonic() - began


def test_a_scrub_is_never_faster_than_its_limit(saved: tuple[RunDir, Saved]) -> None:
    assert hash_all(*saved, scrub_mb_per_s=20) >= 4 * (1 << 20) / 20e6


def test_a_scrub_in_progress_gives_way_at_once(saved: tuple[RunDir, Saved]) -> None:
    run, made = saved
    hasher = Hasher(run, lambda: None)
    hasher.start(of(made), scrub_mb_per_s=1e-6)
    hasher.give_up_scrub()
    assert hasher.current is None
    hasher.start(of(made))
    hasher.give_up_scrub()
    assert hasher.current is not None, "what was never hashed gives way to nothing"
    hasher.close()


def test_a_scrub_reads_the_disk_and_not_the_page_cache(saved: tuple[RunDir, Saved]) -> None:
    run, made = saved
    hash_all(run, made)
    before = psutil.Process().io_counters().read_bytes
    hash_all(run, made)
    if psutil.Process().io_counters().read_bytes != before:
        pytest.skip("this file system keeps nothing in the page cache")
    hash_all(run, made, scrub_mb_per_s=1000)
    if psutil.Process().io_counters().read_bytes == before:
        pytest.skip("this file system is memory")
    assert psutil.Process().io_counters().read_bytes - before >= made.manifest.bytes


# --- a run -----------------------------------------------------------------------------------------------------------


def stopped_at(run: Scene, step: int) -> None:
    """A run that was stopped with its head at this step or later."""
    master = run.start()
    master.wait_for(lambda: run.head_step() >= step)
    master.signal(signal.SIGINT)
    assert master.end() == 0, master.text()


def ancestor(run: Scene) -> Path:
    """The directory of the head's parent."""
    of_head = "SELECT parent FROM checkpoints JOIN runs ON head=checkpoint_id"
    return run.run.root / str(run.one(f"SELECT path FROM checkpoints WHERE checkpoint_id=({of_head})"))


def test_a_checkpoint_that_rots_is_found_and_put_away_while_the_run_trains(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.2, retention__keep_ancestors=5) as run:
        stopped_at(run, 2)
        rotten = ancestor(run)
        flip_a_byte(rotten)
        master = run.start("", "--accept-changes", fake__step_s=60)
        master.wait_for_line(f"DAMAGED, moved to quarantine: {rotten.name}")
        master.kill()
        run.finish("", "--accept-changes", fake__step_s=0)
        assert quarantined(run) == [rotten.name.split("-")[1]]
        check_invariants(run, clean.ending)


def test_doctor_finds_what_is_wrong_with_a_run_and_repairs_it(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", run__max_cycles=11, run__steps_per_cycle=2) as run:
        run.finish()
        whole = ending(run)
        healthy = run.ask("doctor")
        assert healthy.returncode == 0, healthy.stdout
        assert "FAIL" not in healthy.stdout and "warn" not in healthy.stdout

        rotten, backup = ancestor(run), max(run.run.backups.glob("*.db"))
        flip_a_byte(rotten)
        backup.write_bytes(os.urandom(9000))
        (run.run.checkpoints / ".staging-gone").mkdir()
        found = run.ask("doctor")
        assert found.returncode == 0, "nothing that a run needs is missing"
        for part in (f"{rotten.name} is damaged", f"{backup.name} cannot be used", ".staging-gone, to remove"):
            assert f"{part}" in found.stdout
        assert rotten.exists(), "without --repair nothing is changed"

        mended = run.ask("doctor", "--repair")
        assert mended.returncode == 0, mended.stdout + mended.stderr
        assert f"DAMAGED, moved to quarantine: {rotten.name}" in mended.stdout
        assert "warn" not in mended.stdout
        with closing(sqlite3.connect(backup)) as db:
            assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,)
        assert run.ask("doctor").stdout.count("ok ") == healthy.stdout.count("ok ")
        assert ending(run) == whole
        check_invariants(run)


def test_doctor_replaces_a_rotten_head_and_the_run_ends_as_if_undisturbed(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.2) as run:
        stopped_at(run, 4)
        flip_a_byte(run.head_dir())
        found = run.ask("doctor")
        assert found.returncode == 74, found.stdout
        assert "the head, is damaged: weights.json was changed" in found.stdout
        mended = run.ask("doctor", "--repair")
        assert mended.returncode == 0, mended.stdout + mended.stderr
        assert "DAMAGED HEAD, going on from" in mended.stdout
        run.finish()
        check_invariants(run, clean.ending)


def test_doctor_makes_a_lost_store_again(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.2) as run:
        stopped_at(run, 4)
        for path in run.run.root.glob("state.db*"):
            path.unlink()
        assert run.ask("doctor").returncode == 74
        mended = run.ask("doctor", "--repair")
        assert mended.returncode == 0, mended.stdout + mended.stderr
        run.finish()
        check_invariants(run, clean.ending)


def test_doctor_reads_beside_a_master_and_repairs_only_without_one(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=60) as run:
        master = run.start()
        master.wait_for(lambda: run.head_step() >= 0)
        beside = run.ask("doctor")
        assert beside.returncode == 0, beside.stdout
        assert f"pid {master.pid} trains this run" in beside.stdout
        refused = run.ask("doctor", "--repair")
        assert refused.returncode == 69, refused.stderr
        assert run.ask("doctor", "--repair", "--json").stdout == ""


def test_doctor_repair_needs_the_name_of_a_run(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        assert run.ask("doctor").returncode == 66
