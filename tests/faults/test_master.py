"""Rows M1 to M7 and M9: the master dies, at every kind of moment. (M8: test_recovery.)"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from state.tables import SCHEMA_VERSION
from tests.faults.conftest import Clean
from tests.faults.harness import KNOBS, Scene, scene
from tests.faults.invariants import check_invariants, check_recovery, ending

KILLED = -signal.SIGKILL
N = KNOBS["run.checkpoint_every"]


def killed_at(run: Scene, crash: str, beside: Path) -> None:
    """A master that died there, and a copy of what it left has recovered well."""
    run.finish(crash, code=KILLED)
    check_recovery(run, beside, lost_at_most=N)


def test_M1_master_killed_while_planned_closes_the_row_and_starts_anew(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        killed_at(run, "attempt.planned:3", tmp_path / "copy")
        run.finish()
        assert [state for state, *_ in run.attempts()] == ["lost", "succeeded"]
        check_invariants(run, clean.ending)


@pytest.mark.parametrize("point", ["worker.launched:1", "attempt.spawned:3"])
def test_M2_master_killed_between_the_start_of_a_worker_and_its_order_leaves_no_process(
    point: str, clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        run.finish(point, code=KILLED)
        run.wait_until_nobody_is_left()
        run.finish()
        check_invariants(run, clean.ending)


def test_M3_master_killed_while_running_ends_its_worker_and_reuses_rollouts(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.1, run__checkpoint_every=100) as run:
        master = run.start()
        master.wait_for(run.run.rollout_file(1, 4).exists)
        master.kill()
        run.wait_until_nobody_is_left()
        check_recovery(run, tmp_path / "copy", lost_at_most=100)
        run.finish()
        log = run.run.attempt(1, 2).log.read_text()
        for step in (1, 2, 3):
            assert f"step {step}: rollouts of an earlier attempt are reused" in log
        check_invariants(run, clean.ending)


@pytest.mark.parametrize("point", ["commit.before:3", "commit.inside:3", "store.before_commit:1"])
def test_M4_M5_master_killed_before_or_inside_the_commit_adopts_the_child(
    point: str, clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        if point.startswith("commit"):
            killed_at(run, point, tmp_path / "copy")
            assert run.head_step() == 2, "the transaction did not happen"
            master = run.finish()
            assert "adopted c0001-s000004" in master.out.read_text()
        else:
            run.finish(point, code=KILLED)
            run.finish()
        check_invariants(run, clean.ending)


@pytest.mark.parametrize(
    "point", ["commit.after:4", "prune.marked:1", "prune.after_rename:1", "prune.mid_remove:1"]
)  # fmt: skip
def test_M6_master_killed_around_pruning_finishes_it(point: str, clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        killed_at(run, point, tmp_path / "copy")
        run.finish()
        states = Counter(state for (state,) in run.rows("SELECT state FROM checkpoints"))
        assert states == {"committed": 3, "deleted": 1}
        check_invariants(run, clean.ending)


@pytest.mark.parametrize("nth", [1, 4])
def test_M7_master_killed_during_ingest_moves_offset_and_rows_together(nth: int, clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        killed_at(run, f"ingest.before_offset:{nth}", tmp_path / "copy")
        run.finish()
        check_invariants(run, clean.ending)


MIGRATED = """
import sys
from state import database
database.MIGRATIONS += ("CREATE TABLE added (x INTEGER) STRICT; INSERT INTO added VALUES (7);",)
database.SCHEMA_VERSION += 1
from orchestrator.signals import SIGNALS
SIGNALS.install()
from orchestrator.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
"""A later program, whose schema has one migration more."""


def test_M9_master_killed_during_migration_rolls_back_and_has_a_backup(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("commit.after:3", code=KILLED)
        later = [sys.executable, "-c", MIGRATED, *run.command("--plain")[3:]]
        assert run.launch(later, "store.in_migration:1").end() == KILLED
        assert run.one("SELECT name FROM sqlite_master WHERE name='added'") is None
        assert (run.run.backups / f"state.db.v{SCHEMA_VERSION}.bak").exists()
        master = run.launch(later)
        assert master.end() == 0, master.text()
        assert run.rows("SELECT x FROM added") == [(7,)]
        assert ending(run) == clean.ending
