"""status: every fact, from a store that nobody locks; processes only where they live."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from orchestrator.alive import flock_holder, is_process, master_pid
from orchestrator.commands import status
from orchestrator.runs import all_runs, find_run, newest_unfinished
from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir
from state.reader import Reader
from tests.builders import NOW, build_store

KEYS = {
    "run", "profile", "phase", "state", "cycle", "step", "steps_total", "head", "validation", "master_pid",
    "worker_pid", "stop_reason", "exactness", "exactness_reason", "examples", "training_s", "time",
    "heartbeat_age_s",
}  # fmt: skip


def arguments(runs: Path, run: str | None = None, as_json: bool = True) -> argparse.Namespace:
    return argparse.Namespace(runs=runs, run=run, json=as_json)


def hold(run: RunDir, pid: int, host: str | None = None, started_at: float | None = None) -> None:
    text = {"pid": pid, "started_at": started_at or time.time(), "host": host or socket.gethostname(), "boot_id": "b"}
    run.lock.write_text(json.dumps(text, indent=2) + "\n")


def change(run: RunDir, sql: str, *values: object) -> None:
    with sqlite3.connect(run.store) as connection:
        connection.execute(sql, values)
    connection.close()


def test_all_facts_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_store(tmp_path / "night")
    assert status.run(arguments(tmp_path)) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts) >= KEYS
    assert (facts["run"], facts["profile"], facts["state"], facts["cycle"], facts["step"]) == (
        "night", "pocket", "stopped", 3, 60,
    )  # fmt: skip
    assert facts["head"] == {"path": "checkpoints/c000003-s000060", "step": 60, "digest": f"{3:064x}"}
    assert facts["validation"]["step"] == 60
    assert set(facts["validation"]["metrics"]) == {"abd", "ded", "ind", "mean"}
    assert (facts["master_pid"], facts["worker_pid"], facts["stop_reason"]) == (None, None, "asked to stop")
    assert (facts["exactness"], facts["steps_total"]) == ("bit-exact", None)


def test_people_get_lines_and_the_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_store(tmp_path / "night")
    status.run(arguments(tmp_path, as_json=False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run         night (profile pocket)"
    assert lines[1] == "state       stopped: asked to stop"
    assert lines[-1] == f"next        python -m orchestrator run --runs {tmp_path} --run night"


def test_after_seeding_alone_the_next_command_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_store(tmp_path / "night", profile=json.dumps({"name": "pocket", "run": {"phases": ["seed"]}}))
    status.run(arguments(tmp_path, as_json=False))
    assert capsys.readouterr().out.splitlines()[-1].endswith(" --run night --full-pipeline")


def test_the_runs_own_texts_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = build_store(tmp_path / "night")
    change(run, "UPDATE runs SET stop_reason=?", "\x1b[2Jgone\nnext        rm -rf /")
    status.run(arguments(tmp_path, as_json=False))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "␛[2Jgone⏎next" in out


def test_a_limit_of_cycles_gives_the_last_step(tmp_path: Path) -> None:
    profile = json.dumps({"name": "pocket", "run": {"max_cycles": 5, "steps_per_cycle": 20}})
    run = build_store(tmp_path / "night", profile=profile)
    assert status.collect(run, NOW)["steps_total"] == 100


def test_a_run_whose_master_died_is_interrupted(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", state="running", reason="")
    hold(run, pid=2**22 + 1)
    facts = status.collect(run, NOW)
    assert (facts["state"], facts["master_pid"]) == ("interrupted", None)
    assert "orchestrator run --run night" in status.render(facts)


def test_a_run_whose_master_lives_is_running(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", state="running", reason="")
    hold(run, pid=os.getpid())
    facts = status.collect(run, NOW)
    assert (facts["state"], facts["master_pid"]) == ("running", os.getpid())
    assert "orchestrator top --run night" in status.render(facts)


def test_a_worker_is_named_while_its_process_is_the_one_that_was_started(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", state="running", reason="")
    hold(run, pid=os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        started = psutil.Process(worker.pid).create_time()
        row = (
            "UPDATE attempts SET state='running', pid=?, process_started=?"
            " WHERE rowid=(SELECT max(rowid) FROM attempts)"
        )
        change(run, row, worker.pid, started)
        assert status.collect(run, NOW)["worker_pid"] == worker.pid
        worker.communicate(b"\n")
    assert status.collect(run, NOW)["worker_pid"] is None


def test_a_process_that_has_inherited_the_number_is_not_the_master(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night")
    hold(run, pid=os.getpid(), started_at=psutil.Process().create_time() - 60)
    assert master_pid(run, heartbeat_age_s=0.0) is None


@pytest.mark.parametrize(("age", "is_alive"), [(10.0, True), (600.0, False)])
def test_a_master_elsewhere_counts_while_its_heartbeat_is_young(tmp_path: Path, age: float, is_alive: bool) -> None:
    run = build_store(tmp_path / "night")
    hold(run, pid=12345, host="another-machine")
    assert (master_pid(run, age) == 12345) is is_alive


@pytest.mark.parametrize("text", ["", "4711", "{", '{"pid": "x"}', "[]"])
def test_a_lock_file_that_names_nobody(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path)
    run.lock.write_text(text)
    assert master_pid(run, 0.0) is None


def test_the_kernels_list_of_locks() -> None:
    locks = (
        "1: POSIX  ADVISORY  READ 5433 08:01:7864448 128 128\n"
        "2: FLOCK  ADVISORY  WRITE 2001 08:01:7864554 0 EOF\n"
        "2: -> FLOCK  ADVISORY  WRITE 2002 08:01:7864554 0 EOF\n"
    )
    assert (flock_holder(locks, 7864554), flock_holder(locks, 7864448)) == (2001, None)


def test_a_zombie_is_not_alive() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not is_process(pid, started_before=time.time() + 9)
    os.waitpid(pid, 0)


# --- which run -------------------------------------------------------------------------------------------------------


def test_the_newest_run_is_meant_and_the_newest_unfinished(tmp_path: Path) -> None:
    build_store(tmp_path / "a", heartbeat_at=NOW - 10)
    build_store(tmp_path / "b", heartbeat_at=NOW, state="finished")
    build_store(tmp_path / "c", heartbeat_at=NOW - 20)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "state.db").write_bytes(b"SQLite format 3\0 but torn")
    assert [found.run.name for found in all_runs(tmp_path)] == ["b", "a", "c"]
    assert find_run(arguments(tmp_path)).name == "b"
    assert find_run(arguments(tmp_path, run="c")).name == "c"
    unfinished = newest_unfinished(tmp_path)
    assert unfinished is not None and unfinished.name == "a"


@pytest.mark.parametrize("root", ["", "missing"])
def test_without_any_run_the_command_that_starts_one_is_named(tmp_path: Path, root: str) -> None:
    with pytest.raises(LonghaulError) as error:
        find_run(arguments(tmp_path / root))
    assert (error.value.exit_code, error.value.next_command) == (ExitCode.INPUT, "python -m orchestrator run")
    assert newest_unfinished(tmp_path / root) is None


def test_a_name_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    build_store(tmp_path / "night")
    with pytest.raises(LonghaulError, match=r"no run 'nihgt'.*there are: night"):
        find_run(arguments(tmp_path, run="nihgt"))


# --- how fast --------------------------------------------------------------------------------------------------------


def test_ten_thousand_cycles_cost_status_no_more_than_their_rows(tmp_path: Path) -> None:
    """Counted in SQLite's own instructions, not in seconds: steps are never scanned, cycles at most a few times."""
    run = build_store(tmp_path / "long", cycles=10_000, steps=20_000)
    reader = Reader.open(run)
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    reader.connection.set_progress_handler(tick, 1000)
    reader.history()
    status.started_versions(reader)
    status.newest_step(reader, 0)
    reader.close()
    assert ticks < 1000  # a million instructions: some ten per row of cycles, attempts and validations


def test_status_imports_nothing_heavy(tmp_path: Path) -> None:
    build_store(tmp_path / "night")
    heavy = "torch", "numpy", "rich", "sqlite_utils", "msgspec"
    code = (
        "import sys; from orchestrator.cli import main\n"
        f"main(['status', '--runs', {str(tmp_path)!r}])\n"
        f"sys.exit(','.join(set(sys.modules) & set({heavy!r})) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_suites_beyond_the_first_have_a_line_each(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night")
    metrics = {"maths": {"accuracy": 0.25, "n": 8}, "mean": {"accuracy": 0.25, "low": 0.1, "high": 0.5, "n": 8}}
    row = ("c000003", "gsm8k", 3, 1, 60, 0.25, 2, 8, json.dumps(metrics), NOW)
    change(run, "INSERT INTO validations VALUES (?,?,?,?,?,?,?,?,?,?,0)", *row)
    facts = status.collect(run, NOW)
    assert facts["other_suites"] == {"gsm8k": {"step": 60, "metrics": metrics}}
    text = status.render(facts)
    assert "accuracy    gsm8k      0.250 [0.10, 0.50]   (step 60)\n" in text
    assert text.index("deduction") < text.index("gsm8k")


def test_a_clock_that_was_set_back_gives_no_share_of_the_time_below_zero(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=3, steps=60)
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE cycles SET started_at=committed_at-30")
        db.execute("UPDATE cycles SET started_at=committed_at+3600 WHERE cycle=3")
    found = status.collect(run, NOW)["time"]
    assert (found["first"], found["last"]) == (1, 2) and 0 < found["learning"] < 1
