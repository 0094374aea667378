"""Bits of a validation in the store, and stores of before there were any."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from state.history import AnswerBits
from state.layout import RunDir
from state.reader import Reader
from state.store import Store
from state.tables import SCHEMA_VERSION, SEALED
from tests.builders import build_store

BITS = {"abd": AnswerBits(("a", "b", "c"), 0b101, 0b010), "ded": AnswerBits(("d",), 1)}


def without_answers(path: Path) -> RunDir:
    """A store as the first version of the schema left it, with three validated cycles."""
    run = build_store(path, cycles=3, steps=30)
    with closing(sqlite3.connect(run.store)) as db, db:
        for trigger in ("cycle_added", "cycle_removed", "cycle_changed"):
            db.execute(f"DROP TRIGGER {trigger}")
        for index in ("attempts_reduced", "validations_newest", "cycles_undone", "steps_series"):
            db.execute(f"DROP INDEX {index}")
        db.execute("ALTER TABLE validations DROP COLUMN asked")
        db.execute("ALTER TABLE attempts DROP COLUMN forgiven")
        for table in ("requests", "totals", "node_failures", "answers", "problem_sets"):
            db.execute(f"DROP TABLE {table}")
        for table in SEALED:
            db.execute(f"ALTER TABLE {table} DROP COLUMN row_digest")
        db.executescript("ALTER TABLE runs DROP COLUMN all_problems; PRAGMA user_version=1;")
    return run


def test_an_old_store_is_read_as_it_is_and_migrated_by_the_master(tmp_path: Path) -> None:
    run = without_answers(tmp_path / "night")
    with closing(Reader.open(run)) as reader:
        before = reader.history()
    assert before.all_problems is None and any(cycle.validations for cycle in before.recent)
    with closing(Store.open(run)) as store:
        assert store.db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
    with closing(Reader.open(run)) as reader:
        assert reader.history() == before


def test_bits_come_back_with_their_problems_and_the_first_result_stays(tmp_path: Path) -> None:
    run = without_answers(tmp_path / "night")
    with closing(Store.open(run)) as store:
        checkpoint_id, cycle, step = store.db.execute(
            "SELECT checkpoint_id, cycle, step FROM validations ORDER BY step DESC LIMIT 1"
        ).fetchone()
        store.db.execute("DELETE FROM validations WHERE checkpoint_id=?", [checkpoint_id])
        store.db.execute("UPDATE cycles SET state='validating' WHERE cycle=?", [cycle])
        scores = {"pocket": {"mean": {"accuracy": 0.5, "correct": 2, "n": 4}}}
        store.commit_validation(checkpoint_id, cycle, 1, step, scores, 1.0, {"pocket": BITS})
        store.commit_validation(checkpoint_id, cycle, 2, step, scores, 2.0, {"pocket": {}})
    with closing(Reader.open(run)) as reader:
        history = reader.history()
    found = [one for facts in (*history.recent, history.current) if facts and facts.cycle == cycle
             for one in facts.validations]  # fmt: skip
    assert dict(found[0].answers) == BITS
