"""Thinned series: what a point stands for, and that every step counts."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import series
from state.layout import RunDir
from state.reader import Reader
from state.series import Thinned, chosen, edges_of, extremes
from tests.builders import build_store, validation_metrics


@given(st.integers(1, 10_000), st.integers(0, 3000), st.integers(1, 700))
def test_buckets_hold_each_step_once_and_differ_by_one_step_at_most(first: int, num_steps: int, points: int) -> None:
    edges = edges_of(first, first + num_steps - 1, points)
    sizes = [end - start for start, end in pairwise(edges)]
    assert sum(sizes) == num_steps and len(sizes) == min(points, num_steps)
    assert not sizes or (edges[0] == first and min(sizes) >= 1 and max(sizes) - min(sizes) <= 1)


@given(st.integers(1, 10_000), st.integers(1, 500), st.integers(1, 60))
def test_one_step_of_each_stretch_is_chosen(first: int, num_steps: int, every: int) -> None:
    end = first + num_steps
    stretches = [range(start, min(start + every, end)) for start in range(first, end, every)]
    found = list(chosen(first, end, every))
    assert all(step in stretch for step, stretch in zip(found, stretches, strict=True))


def test_steps_are_not_chosen_in_time_with_a_cycle() -> None:
    places = {step % 20 for step in chosen(1, 20_001, 20)}
    assert places == set(range(20))


def a_run(folder: Path, values: Sequence[float | None], **columns: str) -> RunDir:
    """Step n reports values[n - 1] as `own`."""
    run = build_store(folder / "night", cycles=1, steps=len(values))
    with closing(sqlite3.connect(run.store)) as db, db:
        for step, value in enumerate(values, 1):
            db.execute("UPDATE steps SET metrics=? WHERE step=?", [json.dumps({"own": value}), step])
        for name, sql in columns.items():
            db.execute(f"UPDATE steps SET {name}={sql}")
    return run


def thinned(run: RunDir, metrics: Sequence[str], points: int, first: int = 1, last: int | None = None) -> Thinned:
    with closing(Reader.open(run)) as reader:
        return reader.series(metrics, points, first=first, last=last)


def test_a_point_has_the_mean_the_lowest_and_the_highest_of_its_steps(tmp_path: Path) -> None:
    found = thinned(a_run(tmp_path, [1.0, 5.0, 3.0, 10.0, 20.0, 60.0]), ["own"], 2)
    assert found.edges == (1, 4, 7) and found.middles == [2.0, 5.0]
    assert found.metrics["own"] == ((3.0, 1.0, 5.0, 3), (30.0, 10.0, 60.0, 3))


def test_a_column_is_aggregated_like_any_metric(tmp_path: Path) -> None:
    run = a_run(tmp_path, [1.0] * 6, reward="step", seconds="step * 2", tokens="step * 100", loss="NULL")
    found = thinned(run, ["reward", "loss"], 2)
    assert found.metrics["reward"] == ((2.0, 1.0, 3.0, 3), (5.0, 4.0, 6.0, 3))
    assert found.metrics["loss"] == (None, None)


def test_seconds_and_tokens_run_from_the_beginning_of_the_run_also_for_a_part_of_it(tmp_path: Path) -> None:
    run = a_run(tmp_path, [1.0] * 6, seconds="step * 2", tokens="step * 100")
    assert thinned(run, [], 2).seconds == (12.0, 42.0)
    part = thinned(run, [], 2, first=3, last=6)
    assert part.edges == (3, 5, 7) and part.seconds == (20.0, 42.0) and part.tokens == (1000, 2100)


def test_what_is_no_finite_number_is_left_out(tmp_path: Path) -> None:
    found = thinned(a_run(tmp_path, [1.0, None, float("nan"), float("inf")]), ["own"], 2)
    assert found.metrics["own"] == ((1.0, 1.0, 1.0, 1), None)


def test_steps_beyond_the_head_count_and_those_of_an_abandoned_attempt_do_not(tmp_path: Path) -> None:
    run = a_run(tmp_path, [1.0, 2.0])
    with closing(sqlite3.connect(run.store)) as db, db:
        row = (
            "INSERT INTO steps (step, cycle, attempt, seq, trained, seconds, metrics, t_wall) VALUES (?,1,?,9,0,4,?,0)"
        )
        db.execute(row, [3, 1, '{"own": 30.0}'])
        db.execute(row, [3, 0, '{"own": 99.0}'])
        db.execute("UPDATE cycles SET state='training' WHERE cycle=1")
    found = thinned(run, ["own"], 1)
    assert found.edges == (1, 4) and found.metrics["own"] == ((11.0, 1.0, 30.0, 3),)
    assert found.seconds == (1.1 + 1.1 + 4,)


def test_of_very_many_steps_some_rows_of_each_point_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "ROWS_READ", 50)
    run = a_run(tmp_path, [float(step) for step in range(1, 201)], reward="step")
    found = thinned(run, ["own", "reward"], 10)
    assert found.every == 4
    read = [point.num_steps for point in found.metrics["own"] if point is not None]
    assert read == [5] * 10
    assert [point.num_steps for point in found.metrics["reward"] if point is not None] == [20] * 10
    for own, whole in zip(found.metrics["own"], found.metrics["reward"], strict=True):
        assert own is not None and whole is not None
        assert whole.low <= own.low <= own.mean <= own.high <= whole.high


def test_a_run_without_steps_has_no_points(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=1, steps=1)
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("DELETE FROM steps")
    assert thinned(run, ["reward"], 10) == Thinned((), 1, (), (), {"reward": ()})


def test_a_store_of_an_earlier_version_is_thinned_without_the_index(tmp_path: Path) -> None:
    run = a_run(tmp_path, [1.0, 2.0], reward="step")
    with closing(sqlite3.connect(run.store)) as db, db:
        db.executescript("DROP INDEX steps_series; PRAGMA user_version=5;")
    assert thinned(run, ["reward"], 1).metrics["reward"] == ((1.5, 1.0, 2.0, 2),)


def test_columns_are_read_from_their_index_alone(tmp_path: Path) -> None:
    run = a_run(tmp_path, [1.0])
    with closing(sqlite3.connect(run.store)) as db:
        said = db.execute(
            "EXPLAIN QUERY PLAN SELECT count(reward), total(seconds), max(loss), total(tokens) FROM steps"
            " WHERE trained=1 AND step>=1 AND step<9"
        ).fetchall()
    assert "COVERING INDEX steps_series" in str(said)


def test_the_ends_and_the_extremes_between_them_are_kept_in_their_order() -> None:
    points = [(math.sin(number / 9), number) for number in range(1000)]
    points[432], points[433] = (7.0, 432), (-7.0, 433)
    found = extremes(points, 50)
    assert len(found) <= 50 and found == sorted(found, key=lambda one: one[1])
    assert {points[0], points[432], points[433], points[-1]} <= set(found)
    assert extremes(points[:50], 50) == points[:50]


def test_each_suite_keeps_its_first_and_last_validation_and_at_most_as_many_as_are_wanted(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=30, steps=300)
    with closing(sqlite3.connect(run.store)) as db, db:
        for cycle in range(31):
            row = [f"c{cycle:06d}", cycle, cycle * 10, json.dumps(validation_metrics(cycle * 10))]
            db.execute("INSERT INTO validations VALUES (?,'other',?,1,?,.5,1,2,?,0,0)", row)
    with closing(Reader.open(run)) as reader:
        found = reader.thinned_validations(6)
        everything = reader.thinned_validations()
    for suite in ("pocket", "other"):
        steps = [one.step for one in found if one.suite == suite]
        assert (steps[0], steps[-1]) == (0, 300) and 4 <= len(steps) <= 6
    assert len(everything) == 62
