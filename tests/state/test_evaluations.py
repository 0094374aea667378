"""The folder of evaluations: one writer, rows that may come twice, and a lock that outlives a killed command."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from state.evaluations import (
    SCHEMA_VERSION,
    EvaluationDir,
    EvaluationLock,
    EvaluationStore,
    Target,
    holder_of,
    read_evaluations,
)

TARGET = Target("checkpoint", "night", 40, "c0ffee", "checkpoints/c0002-s000040-x")
METRICS = {"ded": {"n": 2, "accuracy": 0.5}, "mean": {"n": 2, "accuracy": 0.5}}


@pytest.fixture
def where(tmp_path: Path) -> EvaluationDir:
    (tmp_path / "evaluations").mkdir()
    return EvaluationDir(tmp_path / "evaluations")


def begun(where: EvaluationDir, *answers: tuple[str, str, int, int], fingerprint: str = "f1") -> EvaluationStore:
    store = EvaluationStore(where)
    store.begin("e1", TARGET, {"samples": 1}, "0.1.0", 100.0)
    store.begin_suite("e1", "cruxeval-o", fingerprint, 2, 101.0)
    store.add_answers("e1", "cruxeval-o", answers)
    return store


def test_an_evaluation_in_progress_and_a_finished_one_are_read_back(where: EvaluationDir) -> None:
    store = begun(where, ("p0", "ded", 1, 1))
    (facts,) = read_evaluations(where)
    assert (facts.suite, facts.n, facts.answered, facts.score, facts.ended_at) == ("cruxeval-o", 2, 1, None, None)
    assert facts.target == TARGET and facts.settings == {"samples": 1}
    store.add_answers("e1", "cruxeval-o", [("p1", "ded", 1, 0)])
    store.end_suite("e1", "cruxeval-o", (0.5, 0.1, 0.9), METRICS, 102.0)
    store.close()
    (facts,) = read_evaluations(where)
    assert (facts.answered, facts.score, facts.low, facts.high, facts.ended_at) == (2, 0.5, 0.1, 0.9, 102.0)
    assert facts.metrics == METRICS


def test_everything_may_be_told_twice(where: EvaluationDir) -> None:
    for now in (102.0, 999.0):
        store = begun(where, ("p0", "ded", 1, 1), ("p1", "ded", 1, 0))
        store.end_suite("e1", "cruxeval-o", (0.5, 0.1, 0.9), METRICS, now)
        store.close()
    (facts,) = read_evaluations(where)
    assert (facts.answered, facts.ended_at) == (2, 102.0)


def test_answers_to_other_prompts_no_longer_count(where: EvaluationDir) -> None:
    store = begun(where, ("p0", "ded", 1, 1), ("p1", "ded", 1, 0))
    store.end_suite("e1", "cruxeval-o", (0.5, 0.1, 0.9), METRICS, 102.0)
    store.close()
    begun(where, ("p0", "ded", 1, 0), fingerprint="f2").close()
    (facts,) = read_evaluations(where)
    assert (facts.answered, facts.score) == (1, None)


def test_without_a_store_nothing_was_evaluated(where: EvaluationDir) -> None:
    assert read_evaluations(where) == ()
    sqlite3.connect(where.store).close()  # a crash before the first migration
    assert read_evaluations(where) == ()


def test_a_newer_store_is_left_alone(where: EvaluationDir) -> None:
    begun(where).close()
    with sqlite3.connect(where.store) as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(LonghaulError) as caught:
        EvaluationStore(where)
    assert caught.value.exit_code == ExitCode.VERSION


@pytest.mark.parametrize("use", [EvaluationStore, read_evaluations])
def test_a_damaged_store_is_told_with_a_way_out(use: object, where: EvaluationDir) -> None:
    where.store.write_bytes(b"SQLite format 3\0" + b"\xff" * 8192)
    with pytest.raises(LonghaulError) as caught:
        use(where)  # type: ignore[operator]
    assert caught.value.exit_code == ExitCode.STORE
    assert "evaluations.db.bad" in caught.value.next_command


def test_the_lock_admits_one(where: EvaluationDir) -> None:
    first = EvaluationLock.acquire(where)
    assert first is not None
    assert EvaluationLock.acquire(where) is None
    assert holder_of(where) == str(os.getpid())
    first.release()
    first.release()
    second = EvaluationLock.acquire(where)
    assert second is not None
    second.release()


def test_a_worker_that_inherits_the_lock_holds_it_after_its_master_is_gone(where: EvaluationDir) -> None:
    lock = EvaluationLock.acquire(where)
    assert lock is not None
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock.fd,))
    lock.release()
    try:
        assert EvaluationLock.acquire(where) is None
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        assert worker.stdin is not None
        worker.stdin.close()
    after = EvaluationLock.acquire(where)
    assert after is not None
    after.release()


def test_a_row_needs_its_suite(where: EvaluationDir) -> None:
    store = EvaluationStore(where)
    store.begin("e1", TARGET, {}, "0.1.0", 100.0)
    with pytest.raises(LonghaulError, match="FOREIGN KEY"):
        store.add_answers("e1", "gsm8k", [("p0", "maths", 1, 1)])
    store.close()
