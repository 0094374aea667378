"""Another process, such as a back-up program or a shell, holds SQLite's lock on the store."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from state import database
from state.layout import RunDir
from state.store import NewRun, Store
from tests.faults.conftest import Clean
from tests.faults.harness import scene
from tests.faults.invariants import check_invariants
from tests.faults.test_bad_input import told

HOLD = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@contextmanager
def held(store: Path, seconds: float) -> Iterator[None]:
    """Another process holds the write lock, for so long at most."""
    command = [sys.executable, "-c", HOLD, str(store), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        yield
        holder.kill()


@pytest.mark.slow
def test_lock_held_for_twenty_seconds_is_told_and_waited_for(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        master = run.start()
        master.wait_for_line("checkpoint of step 2 is durable")
        with held(run.run.store, 20.0):
            assert master.end() == 0, master.text()
        assert "another process holds a lock on the store; waiting up to" in master.out.read_text()
        check_invariants(run, clean.ending)


PATIENCE = """
import sys
from state import database
database.LOCK_PATIENCE_S = 0.1
from orchestrator.signals import SIGNALS
SIGNALS.install()
from orchestrator.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
"""A program that is less patient: its limit is a constant of a minute."""


@pytest.mark.slow
def test_lock_that_lasts_beyond_the_limit_ends_with_69_and_the_run_goes_on_later(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        master = run.launch([sys.executable, "-c", PATIENCE, *run.command("--plain")[3:]])
        master.wait_for_line("checkpoint of step 2 is durable")
        with held(run.run.store, 60.0):
            assert master.end() == 69, master.text()
        told(master, "another process holds a lock on the store", "fuser -v")
        run.wait_until_nobody_is_left()
        run.finish()
        check_invariants(run, clean.ending)


def test_a_lock_at_the_begin_of_a_transaction_is_an_error_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_PATIENCE_S", 0.0)
    monkeypatch.setattr(database, "PRAGMAS", (*database.PRAGMAS, "busy_timeout=1"))
    run = RunDir(tmp_path)
    with closing(Store.open(run, NewRun("id", "r", "{}", "", 0, "1", 0.0))) as store:
        with closing(sqlite3.connect(run.store, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LonghaulError) as error:
                store.heartbeat(1.0)
        assert error.value.exit_code == ExitCode.LOCKED
        store.heartbeat(2.0)


AFTER_ANOTHER = """
import subprocess, sys
from orchestrator.signals import SIGNALS
SIGNALS.install()
from orchestrator.commands import run
looked = run.choose
def choose(args):
    found = looked(args)
    assert found.is_new
    subprocess.run([sys.executable, "-m", "orchestrator", *sys.argv[1:]], check=True)
    return found
run.choose = choose
from orchestrator.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
"""A master that another one overtakes after it looked for the run, and before it has the lock."""


@pytest.mark.slow
def test_a_run_that_another_master_made_and_finished_meanwhile_is_resumed(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        command = [sys.executable, "-c", AFTER_ANOTHER, *run.command("--plain")[3:]]
        second = run.launch_and_end(command, code=0)
        assert "resumes from step 6" in second.text()
        check_invariants(run, clean.ending)
