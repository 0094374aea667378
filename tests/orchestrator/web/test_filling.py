"""Reading the series of a store: at once in outline, then whole, then step by step, and anew after a walk back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.web import filling
from orchestrator.web.filling import Filling
from orchestrator.web.series import Series
from state.layout import RunDir
from state.reader import Reader
from tests.builders import build_store

STEPS = 3000


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = build_store(tmp_path_factory.mktemp("runs") / "long", cycles=3, steps=STEPS)
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE steps SET metrics=json_set(metrics, '$.loss', 99.5) WHERE step=1234")
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return build_store(tmp_path / "night", cycles=3, steps=60)


@pytest.fixture
def reader(run: RunDir) -> Iterator[Reader]:
    with closing(Reader.open(run)) as found:
        yield found


def write(run: RunDir, sql: str, *given: object) -> None:
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute(sql, given)


def insert(run: RunDir, step: int, trained: bool, cycle: int = 3, attempt: int = 1, **metrics: float) -> None:
    sql = "INSERT INTO steps VALUES (?, ?, ?, ?, ?, 1.0, 0.5, 0.0, 10, ?, ?)"
    write(run, sql, step, cycle, attempt, 1000 + step, int(trained), json.dumps(metrics), 1000.0 + step)


def all_at_once(reader: Reader, names: list[str]) -> dict[str, dict[str, list[float | None]]]:
    series = Series()
    series.add([(step, json.loads(text)) for step, text in reader.trained_between(1, 1 << 40)])
    return series.points(names)


def test_a_long_run_is_there_in_outline_at_once_and_whole_after_it_was_read(
    long_run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "PIECE", 256)
    with closing(Reader.open(long_run)) as reader:
        found = Filling()
        found.follow(reader)
        outline = found.points(reader, ["loss", "reward"], "", 0)
        assert outline["read"] < 0.1 and outline["last"] == STEPS
        assert None not in outline["lines"]["reward"]["mean"]
        assert max(outline["lines"]["loss"]["high"]) < 1  # the spike was not read yet
        while found.refine(reader):
            pass
        whole = found.points(reader, ["loss", "reward"], outline["key"], outline["settled"])
        assert whole["read"] == 1.0 and whole["first"] == 0  # the outline is void
        assert whole["lines"] == all_at_once(reader, ["loss", "reward"])
        assert max(whole["lines"]["loss"]["high"]) == 99.5


def test_a_piece_is_bounded_so_that_nobody_waits_for_a_whole_run(
    long_run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "PIECE", 256)
    with closing(Reader.open(long_run)) as reader:
        found = Filling()
        found.follow(reader)
        before = found.share
        assert found.refine(reader)
        assert 0 < found.share - before <= (256 + found.series.width) / STEPS


def test_new_steps_are_added_and_only_what_may_have_changed_is_sent(run: RunDir, reader: Reader) -> None:
    found = Filling()
    found.follow(reader)
    first = found.points(reader, ["reward"], "", 0)
    assert (first["first"], first["settled"], first["last"]) == (0, 60, 60)
    insert(run, 61, trained=True, reward=0.25)
    found.follow(reader)
    more = found.points(reader, ["reward"], first["key"], first["settled"])
    assert (more["first"], more["last"]) == (60, 61)
    assert more["lines"]["reward"]["mean"] == [0.25]


def test_steps_beyond_the_head_are_shown_and_stay_open(run: RunDir, reader: Reader) -> None:
    insert(run, 61, trained=False, reward=0.75)
    found = Filling()
    found.follow(reader)
    said = found.points(reader, ["reward"], "", 0)
    assert (said["last"], said["head"], said["settled"]) == (61, 60, 60)
    assert said["lines"]["reward"]["mean"][-1] == 0.75
    write(run, "UPDATE steps SET trained=1, metrics=json_set(metrics, '$.reward', 0.5) WHERE step=61")
    found.follow(reader)
    assert found.points(reader, ["reward"], said["key"], said["settled"])["lines"]["reward"]["mean"] == [0.5]


def test_after_a_walk_back_everything_is_read_and_sent_anew(run: RunDir, reader: Reader) -> None:
    found = Filling()
    found.follow(reader)
    before = found.points(reader, ["reward"], "", 0)
    write(run, "UPDATE steps SET trained=0 WHERE step>50")
    for step in range(51, 63):
        insert(run, step, trained=True, attempt=2, reward=-1.0)
    found.follow(reader)
    after = found.points(reader, ["reward"], before["key"], before["settled"])
    assert after["first"] == 0 and after["key"] != before["key"]
    assert after["lines"]["reward"]["mean"][50:] == [-1.0] * 12


def test_a_walk_back_that_left_fewer_steps_is_noticed_too(run: RunDir, reader: Reader) -> None:
    found = Filling()
    found.follow(reader)
    write(run, "UPDATE steps SET trained=0 WHERE step>50")
    found.follow(reader)
    assert (found.series.last, found.epoch) == (50, 1)


def test_a_run_that_grew_while_nobody_looked_is_read_in_outline_again(
    long_run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Reader.open(long_run)) as reader:
        found = Filling()
        found.series.add([(1, {"reward": 0.0})])
        monkeypatch.setattr(filling, "PIECE", 256)
        found.follow(reader)
        assert found.series.last == STEPS and found.share < 0.5


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "null"])
def test_a_step_whose_metrics_are_damaged_is_a_gap(run: RunDir, reader: Reader, text: str) -> None:
    write(run, "UPDATE steps SET metrics=? WHERE step=30", text)
    found = Filling()
    found.follow(reader)
    reward = found.points(reader, ["reward"], "", 0)["lines"]["reward"]["mean"]
    assert reward[29] is None and reward[28] is not None and reward[30] is not None


def test_an_empty_run_has_an_empty_series(run: RunDir, reader: Reader) -> None:
    write(run, "DELETE FROM steps")
    found = Filling()
    found.follow(reader)
    assert found.points(reader, ["reward"], "", 0)["lines"] == {}
    assert found.share == 1.0 and not found.refine(reader)
