"""What a run is read as: records, and data frames of them."""

from __future__ import annotations

import errno
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

import longhaul
from longhaul.frames import row_of
from state.layout import RunDir
from tests.builders import NOW, PROGRAM, build_store, step_metrics, validation_metrics
from tests.orchestrator.web.served import rollouts as write_rollouts


@pytest.fixture
def run(tmp_path: Path) -> longhaul.Run:
    build_store(tmp_path / "night", cycles=3, steps=60)
    return longhaul.open_run("night", tmp_path)


def test_steps_have_all_their_metrics_and_can_be_read_in_part(run: longhaul.Run) -> None:
    steps = run.steps()
    assert [one.step for one in steps] == list(range(1, 61))
    assert steps[9] == longhaul.Step(10, 1, 1.1, steps[9].reward, step_metrics(10))
    assert [one.step for one in run.steps(first=21, last=23)] == [21, 22, 23]
    assert [one.step for one in run.steps(first=59)] == [59, 60] and run.steps(first=61) == []


def test_a_run_is_watched_a_piece_at_a_time(run: longhaul.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def steps(self: longhaul.Run, *, first: int = 1, last: int | None = None) -> list[longhaul.Step]:
        found = read(self, first=first, last=last)
        asked.append(len(found))
        return found

    read = longhaul.Run.steps
    monkeypatch.setattr(longhaul.Run, "steps", steps)
    monkeypatch.setattr("longhaul.run.PIECE", 25, raising=False)
    assert [step.step for step in run.watch(first=2)] == list(range(2, 61))
    assert asked == [25, 25, 9]


def test_a_curve_has_points_with_mean_and_range(run: longhaul.Run) -> None:
    first, last = run.series(["reward", "buffer/ded", "gone"], points=2)
    assert (first.first, first.last, last.first, last.last) == (1, 30, 31, 60)
    assert last.seconds == pytest.approx(66.0) and last.tokens == 240_000
    assert first.metrics["buffer/ded"] == {"mean": 156.0, "low": 11.0, "high": 301.0}
    assert set(first.metrics) == {"reward", "buffer/ded"}
    assert "reward" in run.metric_names()


def test_validations_cycles_checkpoints_and_tasks_are_records(run: longhaul.Run) -> None:
    first = run.validations()[0]
    assert (first.step, first.suite, first.n, first.tasks) == (0, "pocket", 900, validation_metrics(0))
    assert first.low < first.accuracy < first.high
    assert run.validations("gone") == [] and len(run.validations("pocket")) == 4
    assert [(one.cycle, one.first, one.last, one.state) for one in run.cycles()][-1] == (3, 41, 60, "committed")
    assert [(one.step, one.is_head) for one in run.checkpoints()] == [(0, False), (20, False), (40, False), (60, True)]
    assert run.checkpoints()[-1].path == run.path / "checkpoints/c000003-s000060"
    (task,) = run.tasks(1)
    assert task == longhaul.Task("ded", 58, PROGRAM, "'uvX19'", "'19xVU'", 0.5)
    assert [event.type for event in run.events(2)] == ["started", "memory"]


def test_a_number_beyond_all_that_there_is_gives_all(run: longhaul.Run) -> None:
    assert run.tasks(10**20) == run.tasks(10**6) and run.events(10**20) == run.events(10**6)


def test_rollouts_are_answers_to_the_prompt_whose_rewards_differ_most(run: longhaul.Run) -> None:
    assert run.rollouts() == []
    wrong = {"text": "so \\boxed{41}", "reward": 0.0}
    right = {"text": "so \\boxed{42}", "reward": 1.0, "is_correct": True}
    write_rollouts(RunDir(run.path), 3, 60, [wrong, wrong], [wrong, right], prompt="What is 6 * 7?")
    first, second = run.rollouts()
    assert (first.step, first.prompt, first.answer, first.reward) == (60, "What is 6 * 7?", "so \\boxed{41}", 0.0)
    assert (first.verdict, second.verdict, second.reward) == ("wrong", "right", 1.0)
    assert len(run.rollouts(1)) == 1


def test_where_a_run_stands_is_what_status_says(run: longhaul.Run) -> None:
    status = run.status()
    assert (status.state, status.step, status.head_step, status.is_running) == ("stopped", 60, 60, False)
    assert status.accuracy == run.validations()[-1].accuracy and status.facts["run"] == "night"
    assert "facts" not in repr(status)
    assert run.explain()[0].startswith("It does not run: stopped") and run.profile()["name"] == "pocket"


def test_runs_are_listed_with_the_newest_first(tmp_path: Path) -> None:
    assert longhaul.runs(tmp_path / "gone") == []
    for number, name in enumerate(("old", "new")):
        build_store(tmp_path / name, heartbeat_at=NOW + number)
    assert [one.name for one in longhaul.runs(tmp_path)] == ["new", "old"]
    assert repr(longhaul.open_run(folder=tmp_path)) == f"<longhaul.Run 'new' in {tmp_path}>"


def test_a_run_that_is_not_there_or_damaged_is_an_error_with_its_code(tmp_path: Path) -> None:
    with pytest.raises(longhaul.LonghaulError, match="there is no run") as told:
        longhaul.open_run("gone", tmp_path)
    assert told.value.exit_code == longhaul.ExitCode.INPUT
    assert f" --runs {tmp_path}" in told.value.next_command
    run = build_store(tmp_path / "night")
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE runs SET profile='{}'")
    with pytest.raises(longhaul.LonghaulError, match="is damaged") as told:
        longhaul.open_run("night", tmp_path).status()
    assert told.value.exit_code == longhaul.ExitCode.STORE
    assert told.value.next_command.startswith(f"python -m orchestrator recover --runs {tmp_path} --run night")


def test_a_store_that_is_damaged_within_or_another_user_s_is_an_error_with_its_code_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = build_store(tmp_path / "torn")
    with closing(sqlite3.connect(torn.store)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name='validations'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with torn.store.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"U" * size)
    run = longhaul.open_run("torn", tmp_path)
    for read in (run.status, run.explain, run.cycles, run.checkpoints):
        with pytest.raises(longhaul.LonghaulError, match="malformed") as told:
            read()
        assert told.value.exit_code == longhaul.ExitCode.STORE and f"--runs {tmp_path}" in told.value.next_command

    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(longhaul.LonghaulError, match="Permission denied") as told:
        longhaul.open_run("torn", tmp_path)
    assert told.value.exit_code == longhaul.ExitCode.PERMISSION


# --- frames -----------------------------------------------------------------------------------------------------------


def test_a_frame_has_a_row_for_each_record_and_a_column_for_each_metric(run: longhaul.Run) -> None:
    steps = longhaul.frame(run.steps())
    assert len(steps) == 60 and steps["step"].tolist() == list(range(1, 61))
    assert steps["buffer/ded"].iloc[-1] == 601 and steps["seconds"].iloc[0] == 1.1
    validations = longhaul.frame(run.validations())
    assert validations["mean/sampled_accuracy"].notna().all() and validations["accuracy"].is_monotonic_increasing
    curve = longhaul.frame(run.series(points=3))
    assert list(curve.columns) == ["first", "last", "seconds", "tokens", "reward/mean", "reward/low", "reward/high"]
    for records in (run.cycles(), run.checkpoints(), run.tasks(), run.events(), [run.status()]):
        assert len(longhaul.frame(records)) == len(records)
    assert longhaul.frame([]).empty


def test_a_metric_does_not_take_the_place_of_a_field() -> None:
    assert row_of(longhaul.Step(1, 2, 3.0, 4.0, {"seconds": 9.0, "loss": 5.0})) == {
        "step": 1, "cycle": 2, "seconds": 3.0, "reward": 4.0, "loss": 5.0,
    }  # fmt: skip


def test_without_pandas_a_frame_says_how_to_get_it_and_records_still_work(
    run: longhaul.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(longhaul.LonghaulError, match="needs the package pandas") as told:
        longhaul.frame(run.steps())
    assert told.value.exit_code == longhaul.ExitCode.INPUT and "longhaul[pandas]" in told.value.next_command


def test_what_is_no_record_has_no_frame() -> None:
    with pytest.raises(TypeError):
        longhaul.frame([{"step": 1}])
