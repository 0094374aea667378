"""Rows D10 to D12, continued: every refusal has three lines and its exit code, wherever it comes from."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.run_directory import BALLAST_BYTES, make_directory
from state.layout import RunDir
from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants
from tests.faults.test_bad_input import STOPS, bound_by_permissions, fill, tiny_disk, told
from tests.state.test_order_of_writes import Trace

KILLED = -signal.SIGKILL


def read_only_store(run: Scene) -> list[Path]:
    run.run.store.chmod(0o400)
    return [run.run.store]


def closed_cycles(run: Scene) -> list[Path]:
    run.run.cycles.chmod(0)
    return [run.run.cycles]


def closed_checkpoints(run: Scene) -> list[Path]:
    run.run.checkpoints.chmod(0)
    return [run.run.checkpoints]


def checkpoints_of_another(run: Scene) -> list[Path]:
    if os.getuid():
        pytest.skip("giving a directory away needs root")
    os.chown(run.run.checkpoints, 65534, 65534)
    return []


@pytest.mark.parametrize("close", [read_only_store, closed_cycles, closed_checkpoints, checkpoints_of_another])
def test_D12_what_this_user_may_not_use_ends_with_77(
    close: Callable[[Scene], list[Path]], clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("commit.after:3", code=KILLED)
        run.wait_until_nobody_is_left()
        closed = close(run)
        master = run.launch([*bound_by_permissions(), *run.command("--plain")])
        assert master.end() == 77, master.text()
        told(master)
        for path in closed:
            path.chmod(0o700)
        if close is not checkpoints_of_another:
            run.finish()
            check_invariants(run, clean.ending)


def with_refusal(run: Scene, call: str, path: str, nth: int, error: str) -> list[str]:
    """The command of a run in which the system refuses the nth such call, on that path where one is named."""
    if shutil.which("strace") is None:
        pytest.skip("refusing a system call needs strace")
    on_path = ["-P", str(run.run.root / path)] if path else []
    return ["strace", "-qq", "-o", "/dev/null", *on_path, "-e", f"trace={call}",
            "-e", f"inject={call}:error={error}:when={nth}", *run.command("--plain")]  # fmt: skip


@pytest.mark.parametrize(("error", "code"), [("EACCES", 77), pytest.param("ENOSPC", 73, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("call", "path", "nth", "named"),
    [
        pytest.param("mkdir", "checkpoints", 1, "checkpoints", id="a folder of a new run"),
        pytest.param("rename", ".state.db.new", 1, "state.db", id="the store of a new run"),
        # Renamed before it: the store, place.json, prediction.json, the first worker's spec and handle (twice), the
        # standby's handle (twice), latest.json, and the second spec. strace sees the old name alone.
        pytest.param("rename", "", 11, "validate-1/worker.log", id="the log of a worker that gets its attempt"),
        pytest.param("unlink", "cycles/0001/rollouts/step-000001.jsonl", 1, "0001/rollouts", id="old rollouts"),
    ],
)
def test_D11_D12_refused_system_call_is_told_and_the_run_goes_on_later(
    call: str, path: str, nth: int, named: str, error: str, code: int, clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        master = run.launch(with_refusal(run, call, path, nth, error))
        assert master.end() == code, master.text()
        told(master, named)
        run.wait_until_nobody_is_left()
        run.finish()
        check_invariants(run, clean.ending)


def test_D10_disk_that_is_full_a_second_time_says_so_again_and_ballast_is_made_once_there_is_room(
    clean: Clean, tmp_path: Path
) -> None:
    with tiny_disk(tmp_path / "run", 48), scene(tmp_path / "run", fake__step_s=0.2, **STOPS) as run:
        first = run.start()
        first.wait_for_line("checkpoint of step 2 is durable")
        room = tmp_path / "run" / "filler"
        with room.open("wb", buffering=0) as file:
            fill(file.fileno())
        assert first.end() == 73, first.text()
        assert not run.run.ballast.exists()
        with room.open("ab", buffering=0) as file:
            fill(file.fileno())
        outside = Scene(tmp_path / "outside")  # its output does not fit either
        second = outside.launch(run.command("--plain"))
        assert second.end() == 73, second.text()
        told(second)
        room.unlink()
        run.finish()
        assert run.run.ballast.stat().st_size == BALLAST_BYTES
        check_invariants(run, clean.ending)


def test_a_new_run_directory_is_synced_into_each_new_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(monkeypatch)
    make_directory(RunDir(tmp_path / "a" / "runs" / "night"))
    assert trace.calls == [f"fsync {tmp_path.name}", "fsync a", "fsync runs"]


# --- the birth of a store --------------------------------------------------------------------------------------------

HALF_BORN = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size=1")
db.execute("BEGIN")
db.execute("CREATE TABLE runs (run_id TEXT, filler TEXT)")
db.executemany("INSERT INTO runs VALUES ('r', ?)", [("x" * 4000,)] * 50)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""What earlier versions left when they were killed while they made the tables: pages in the file, and a journal."""


def test_hot_journal_of_a_store_that_was_never_complete_is_no_obstacle(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.run.root.mkdir(parents=True)
        child = subprocess.run([sys.executable, "-c", HALF_BORN, str(run.run.store)], check=False)
        assert child.returncode == KILLED and Path(f"{run.run.store}-journal").stat().st_size
        run.finish()
        check_invariants(run, clean.ending)


@pytest.mark.parametrize("point", ["store.created", "store.in_migration", "store.before_rename", "store.born"])
def test_killed_at_the_birth_of_its_store_a_run_has_a_whole_one_or_none(
    point: str, clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        run.finish(f"{point}:1", code=KILLED)
        if run.run.store.exists():
            with closing(sqlite3.connect(run.run.store)) as db:
                assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,)
        run.finish()
        check_invariants(run, clean.ending)
        assert not list(run.run.root.glob(".state.db*"))
