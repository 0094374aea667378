"""Facts that a History has from rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from state.reader import Reader
from tests.builders import build_store


def test_seeding_lasted_as_long_as_its_workers_spoke_whatever_was_between_them(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=2, steps=10)
    rows = [
        # cycle, role, attempt, seq, t_wall, t_mono: another boot, whose clocks have nothing to do with the first one's
        (0, "train", 2, 1, 9e8, 50.0),
        (0, "train", 2, 2, 9e8, 850.0),
        (0, "validate", 1, 1, 9e8, 900.0),
        (0, "validate", 1, 2, 9e8, 999.0),
        (1, "train", 1, 3, 9e8, 7000.0),
    ]
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE events SET t_mono=120.5 WHERE cycle=0 AND role='train' AND attempt=1 AND seq=2")
        db.executemany("INSERT INTO events VALUES (?,?,?,?,'told',0,?,?,'{}')", rows)
    with closing(Reader.open(run)) as reader:
        found = reader.history()
    assert found.seeding_s == 120.5 + 800.0
    assert abs(found.training_s - 1.1 * 10) < 1e-9


def test_step_times_are_those_of_the_last_timed_steps_that_count_oldest_first(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=2, steps=10)
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE steps SET seconds=step")
        db.execute("UPDATE steps SET seconds=NULL WHERE step=9")
        db.execute("UPDATE steps SET trained=0 WHERE step=4")
    with closing(Reader.open(run)) as reader:
        assert reader.step_seconds(3) == [7.0, 8.0, 10.0]
        assert reader.step_seconds(100) == [1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 10.0]


def test_what_a_commit_did_not_change_is_decoded_once(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=2, steps=10)
    with closing(Reader.open(run)) as reader:
        steps, validations = reader.steps(), reader.validations()
        with closing(sqlite3.connect(run.store)) as db, db:
            db.execute("UPDATE steps SET metrics='{\"loss\": 7.0}' WHERE step=10")
        again = reader.steps()
        assert [one.metrics is other.metrics for one, other in zip(steps, again, strict=True)] == [True] * 9 + [False]
        assert again[-1].metrics == {"loss": 7.0}
        assert all(one is other for one, other in zip(validations, reader.validations(), strict=True))
