"""Digests of rows: every write of a store keeps them, and a value that anything else changed is named."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir
from state.opening import unsound
from state.row_digests import altered, row_digest
from state.store import Store
from state.tables import SEALED
from tests.builders import build_store

VALUES = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(), st.binary())


def opened_once(path: Path) -> RunDir:
    """A store whose rows have digests."""
    run = build_store(path, cycles=4, steps=40)
    Store.open(run).close()
    assert unsound(run.store) == ""
    return run


@given(st.lists(VALUES, min_size=1, max_size=6), st.data())
def test_any_other_value_gives_another_digest(values: list[Any], data: st.DataObject) -> None:
    def digest_of(row: list[Any]) -> str:
        return row_digest(*(word for number, value in enumerate(row) for word in (f"c{number}", value)))

    place = data.draw(st.integers(0, len(values) - 1))
    other = data.draw(VALUES)
    changed = [*values[:place], other, *values[place + 1 :]]
    is_equal = type(other) is type(values[place]) and repr(other) == repr(values[place])
    assert (digest_of(changed) == digest_of(values)) == is_equal


def test_a_column_that_is_added_without_values_changes_no_digest() -> None:
    assert row_digest("a", 1, "b", None) == row_digest("a", 1)


@pytest.mark.parametrize("table", SEALED)
def test_each_column_of_each_row_is_guarded(table: str, tmp_path: Path) -> None:
    run = opened_once(tmp_path / "night")
    with closing(sqlite3.connect(run.store)) as db:
        db.execute("PRAGMA foreign_keys=OFF")
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        rows = [number for (number,) in db.execute(f"SELECT rowid FROM {table}")]
        for column in columns:
            was = db.execute(f"SELECT {column} FROM {table} WHERE rowid=?", [rows[-1]]).fetchone()[0]
            other = was + "x" if isinstance(was, str) else (was or 0) + 1
            if column == "head" and was is None:
                other = "x"
            db.execute("SAVEPOINT one")
            db.execute(f"UPDATE {table} SET {column}=? WHERE rowid=?", [other, rows[-1]])
            assert f"of {table} is not what was written" in altered(db), column
            db.execute("ROLLBACK TO one")
            assert altered(db) == ""


def test_a_store_keeps_digests_while_it_writes(tmp_path: Path) -> None:
    run = opened_once(tmp_path / "night")
    with closing(Store.open(run)) as store:
        before = store.db.execute("SELECT row_digest FROM runs").fetchone()
        store.heartbeat(1e9)
        store.plan_cycle(5, "train", 41, 50, 0, 1e9)
        store.set_verified(store.db.execute("SELECT checkpoint_id FROM checkpoints").fetchone()[0])
        assert store.db.execute("SELECT row_digest FROM runs").fetchone() != before
        assert altered(store.db.conn) == ""
    assert unsound(run.store) == ""


def test_a_start_refuses_a_changed_value_and_names_what_mends_it(tmp_path: Path) -> None:
    run = opened_once(tmp_path / "night")
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE cycles SET train_s=train_s + 1 WHERE cycle=2")
    with closing(Store.open(run)) as store, pytest.raises(LonghaulError) as told:
        store.check(pages=False)
    assert told.value.exit_code == ExitCode.STORE
    assert "the row 2 of cycles is not what was written" in told.value.what
    assert "recover" in told.value.next_command


def test_a_changed_bit_of_any_byte_of_a_sealed_value_is_seen(tmp_path: Path) -> None:
    """In the file itself, at random places of the values of one row."""
    run = opened_once(tmp_path / "night")
    with closing(sqlite3.connect(run.store)) as db:
        profile = db.execute("SELECT profile FROM runs").fetchone()[0].encode()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = run.store.read_bytes()
    start = whole.index(profile[:200])
    draw = random.Random(0)
    for _ in range(50):
        at = start + draw.randrange(200)
        run.store.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(7)]) + whole[at + 1 :])
        assert unsound(run.store)
    run.store.write_bytes(whole)
    assert unsound(run.store) == ""
