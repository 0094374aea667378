"""What the time of a cycle went into."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from state.cycle_times import PARTS, STARTS, CycleTime, learning_share, of_one_clock, parts_of, start_of, time_of
from state.reader import Reader
from tests.builders import build_store

METRICS: dict[str, float | None] = {"seconds/rollout": 40.0, "seconds/update": 20.0, "seconds/judge": 5.0}
STEPS: list[tuple[float, float, dict[str, float | None]]] = [
    (150.0, 40.0, {"seconds/rollout": 25.0, "seconds/update": 10.0}),
    (182.0, 30.0, {"seconds/propose": 5.0, "seconds/solve": 10.0, "seconds/update": 10.0, "seconds/judge": 5.0}),
]


def parts_of_whole(one: CycleTime) -> list[float]:
    return [*one.parts.values(), one.starting, one.between, one.leaving, one.validation, one.committing]


def test_each_second_of_a_cycle_is_counted_once() -> None:
    one = time_of(7, (100.0, 200.0), STEPS, (185.0, 197.0))
    assert one.parts == {"generation": 40.0, "update": 20.0, "sandbox": 5.0, "rest": 5.0}
    assert (one.starting, one.between, one.leaving, one.validation, one.committing) == (10.0, 2.0, 3.0, 12.0, 3.0)
    assert sum(parts_of_whole(one)) == one.whole == 100.0


def test_without_a_validation_the_time_after_the_last_step_is_leaving() -> None:
    one = time_of(7, (100.0, 200.0), STEPS, None)
    assert (one.leaving, one.validation, one.committing) == (18.0, 0.0, 0.0)


def test_a_worker_whose_clock_differs_from_the_master_s_makes_no_time_negative() -> None:
    one = time_of(7, (100.0, 200.0), [(130.0, 40.0, {}), (262.0, 80.0, METRICS)], (265.0, 277.0))
    assert min(parts_of_whole(one)) == 0.0


def test_the_share_of_rollouts_and_updates_is_of_all_time() -> None:
    cycles = [time_of(7, (0.0, whole), [(65.0, 65.0, METRICS)], None) for whole in (100.0, 200.0)]
    assert learning_share(cycles) == pytest.approx(120 / 300)
    assert learning_share([]) == 0.0


def test_a_cycle_in_which_the_clock_was_set_back_is_left_out_of_shares() -> None:
    steps = [(65.0, 65.0, METRICS)]
    good = time_of(7, (0.0, 100.0), steps, (70.0, 90.0))
    back = [time_of(8, (0.0, -3500.0), steps, None), time_of(9, (0.0, 100.0), steps, (90.0, 70.0))]
    assert of_one_clock([good, *back, time_of(10, (0.0, 30.0), steps, None)]) == [good]


def test_a_part_that_was_not_measured_counts_as_nothing() -> None:
    found = parts_of({"seconds/rollout": None, "seconds/update": math.nan, "seconds/judge": 2.0}, 5.0)
    assert found == {"generation": 0.0, "update": 0.0, "sandbox": 2.0, "rest": 3.0}


def test_the_store_tells_the_newest_committed_cycles_oldest_first(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=4, steps=8)
    metrics = json.dumps({"seconds/propose": 1.0, "seconds/solve": 2.0, "seconds/update": 1.5, "seconds/judge": 0.25})
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE cycles SET started_at=1000*cycle, committed_at=1000*cycle+40")
        db.execute("UPDATE cycles SET state='training' WHERE cycle=4")
        # Steps of five seconds, two seconds apart, from the tenth second of the cycle on.
        db.execute("UPDATE steps SET t_wall=1000*cycle+15+7*((step-1)%2), seconds=5.0, metrics=?", [metrics])
        db.execute("DELETE FROM events WHERE role='validate'")
        for seq, (kind, at) in enumerate((("started", 25.0), ("done", 37.0)), 1):
            db.execute(
                "INSERT INTO events SELECT cycle, 'validate', 1, ?, ?, 0, 1000*cycle+?, 0, '{}' FROM cycles",
                [seq, kind, at],
            )
    with closing(Reader.open(run)) as reader:
        found = reader.cycle_times(2)
    assert [one.cycle for one in found] == [2, 3]
    for one in found:
        assert one.parts == {"generation": 6.0, "update": 3.0, "sandbox": 0.5, "rest": 0.5}
        assert tuple(one.parts) == (*PARTS, "rest")
        assert (one.starting, one.between, one.leaving, one.validation, one.committing) == (10.0, 2.0, 3.0, 12.0, 3.0)


def test_no_more_cycles_are_read_than_hold_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=4, steps=12)
    with closing(Reader.open(run)) as reader:
        assert [one.cycle for one in reader.cycle_times(4, 12)] == [1, 2, 3, 4]
        assert [one.cycle for one in reader.cycle_times(4, 4)] == [3, 4]
        assert [one.cycle for one in reader.cycle_times(4, 1)] == [4]


def test_a_run_without_a_committed_cycle_has_none(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=1, steps=2)
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE cycles SET state='training' WHERE cycle=1")
    with closing(Reader.open(run)) as reader:
        assert reader.cycle_times() == []


def test_a_start_is_told_by_the_events_of_its_attempt() -> None:
    told = {"compare_s": 0.5}
    one = start_of(3, "train", 100.0, {"started": (100.2, {}), "path": (102.2, told), "memory": (103.0, {})})
    assert tuple(one.seconds) == STARTS
    assert list(one.seconds.values()) == pytest.approx([0.2, 1.5, 0.5, 0.8])


def test_what_a_start_did_not_tell_is_nothing() -> None:
    one = start_of(3, "validate", 100.0, {"started": (99.0, {})})
    assert list(one.seconds.values()) == [0.0, 0.0, 0.0, 0.0]


def test_the_store_tells_the_starts_of_attempts_that_succeeded(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=2, steps=4)
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("DELETE FROM events")
        db.execute("UPDATE attempts SET started_at=1000*cycle")
        db.execute("UPDATE attempts SET state='failed' WHERE cycle=2 AND role='validate'")
        for seq, (kind, at, data) in enumerate((("started", 1.0, {}), ("path", 3.0, {})), 1):
            db.execute(
                "INSERT INTO events SELECT cycle, role, attempt, ?, ?, 0, 1000*cycle+?, 0, ? FROM attempts",
                [seq, kind, at, json.dumps(data)],
            )
        wanted = db.execute(
            "SELECT cycle, role FROM attempts WHERE state='succeeded' AND cycle>0 ORDER BY started_at"
        ).fetchall()
    with closing(Reader.open(run)) as reader:
        found = [one for one in reader.start_times() if one.cycle > 0]
    assert [(one.cycle, one.role) for one in found] == wanted and wanted
    assert all(list(one.seconds.values()) == [1.0, 2.0, 0.0, 0.0] for one in found)
