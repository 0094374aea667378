"""data: a real command and a real worker, killed where it hurts, on files as they come."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.cli import main
from orchestrator.data_sets.render import Progress, report_lines, task_lines
from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.workers.data.given import LOOP, TWICE, a_run, entry, line, problem, triplet, write
from tests.workers.harness import PATIENCE_S, wait_until
from workers.line_contract import Checked, Note, Reading


def command(*words: str, cwd: Path, crash: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_CRASHPOINT": crash, "LONGHAUL_DATA": ""}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", "data", *words],
        cwd=cwd, env=environment | variables, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def facts(*words: str, cwd: Path, **variables: str) -> Any:
    done = command(*words, "--json", cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_from_runs_and_foreign_files_to_a_set_and_back(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "night", entry(), entry(TWICE, "3", "6"))
    write(tmp_path / "theirs.jsonl", triplet(), triplet(TWICE, "4", "8"), problem(), triplet()[:30], end="")
    said = command("import", "night", "theirs.jsonl", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    table = [row.split() for row in said.stdout.splitlines() if row.startswith(("night", "theirs", "all"))]
    assert table[-3:] == [
        ["night", "2", "2", "2", "0", "0", "0"],
        ["theirs.jsonl", "6", "5", "4", "1", "0", "1"],
        ["all", "8", "7", "6", "1", "0", "1"],
    ]
    assert "  theirs.jsonl:4: torn: " in said.stdout
    assert "data set   data/tasks.jsonl: 6 tasks, 0 before" in said.stdout

    assert facts("stats", cwd=tmp_path)["by_task"] == {"ded": 3, "abd": 2, "ind": 1}
    shown = facts("show", "--task", "ded", "--limit", "2", cwd=tmp_path)["tasks"]
    assert [(one["program"], one["inputs"]) for one in shown] == [(TWICE, ["3"]), (TWICE, ["4"])]
    (one,) = facts("show", "--key", shown[0]["key"][:12], cwd=tmp_path)["tasks"]
    assert one["origin"]["run"] == "night"

    told = facts("export", "data/tasks.jsonl", "--format", "triplet", "--out", "out/t.jsonl", cwd=tmp_path)
    assert told["files"] == {"out/t.jsonl": 3, "out/t_problems.jsonl": 1}
    report = facts("import", "out/t.jsonl", "out/t_problems.jsonl", "--into", "again.jsonl", cwd=tmp_path)
    assert (report["valid"], report["added"], report["invalid"]) == (7, 7, {})
    merge = facts("merge", "data/tasks.jsonl", "again.jsonl", "--into", "all.jsonl", cwd=tmp_path)
    assert (merge["added"], merge["duplicate"], merge["conflict"]) == (7, 6, 0)


def test_a_command_that_is_killed_leaves_the_old_set_and_the_same_command_does_it(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line())
    write(tmp_path / "b.jsonl", line(TWICE))
    command("import", "a.jsonl", cwd=tmp_path)
    old = (tmp_path / "data" / "tasks.jsonl").read_bytes()
    for crash in ("durable.before_rename:1", "durable.before_rename:2"):
        killed = command("import", "b.jsonl", cwd=tmp_path, crash=crash)
        assert killed.returncode == ExitCode.INTERNAL
        assert "the data worker was killed by signal 9 without a message" in killed.stderr
        assert (tmp_path / "data" / "tasks.jsonl").read_bytes() == old
    report = facts("import", "b.jsonl", cwd=tmp_path)
    assert (report["before"], report["after"], report["added"]) == (1, 2, 1)
    assert Path(tmp_path / report["backup"]).read_bytes() == old


def test_a_killed_master_takes_its_worker_along(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line())
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_DATA": "",
                   "LONGHAUL_CRASHPOINT": "durable.before_rename:1:stop"}  # fmt: skip
    words = [sys.executable, "-m", "orchestrator", "data", "import", "a.jsonl"]
    master = psutil.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: [one.status() for one in master.children()] == [psutil.STATUS_STOPPED])
    (worker,) = master.children()
    locked = command("import", "a.jsonl", cwd=tmp_path)
    assert locked.returncode == ExitCode.LOCKED and "another command writes data/tasks.jsonl" in locked.stderr
    master.kill()
    master.wait()
    worker.wait(PATIENCE_S)
    assert not (tmp_path / "data" / "tasks.jsonl").exists()
    assert facts("import", "a.jsonl", cwd=tmp_path)["added"] == 1


def test_ctrl_c_ends_the_command_and_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *[line(LOOP, str(number)) for number in range(1, 400)])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_DATA": ""}
    words = [sys.executable, "-m", "orchestrator", "data", "import", "a.jsonl"]
    master = psutil.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(master.children(recursive=True)) > 1)  # programs are run
        master.send_signal(signal.SIGINT)
        said, _ = master.communicate(timeout=PATIENCE_S)
    finally:
        with suppress(psutil.NoSuchProcess):
            master.kill()
    assert master.returncode == 130
    assert "stopped; kept: the data set and all sources, unchanged" in said
    assert not (tmp_path / "data" / "tasks.jsonl").exists()


def test_a_source_without_a_valid_task_is_an_error_with_its_reasons(tmp_path: Path) -> None:
    write(tmp_path / "theirs.jsonl", '{"prompt": "1 + 1", "answer": "2"}', "\x1b[2Jnonsense", line("def f(a"))
    done = command("import", "theirs.jsonl", cwd=tmp_path)
    assert done.returncode == ExitCode.INPUT
    assert "error: theirs.jsonl: no valid task among 3\n" in done.stderr
    assert "invalid    wrong_keys 1, not_json 1, screen 1" in done.stdout
    assert "theirs.jsonl:1: wrong_keys: neither a task of this project" in done.stdout
    assert "\x1b" not in done.stdout
    assert not (tmp_path / "data" / "tasks.jsonl").exists()
    report = json.loads((tmp_path / "data" / "tasks.report.json").read_text())
    assert [row["line"] for row in report["rejected"]] == [1, 2, 3]


@pytest.mark.skipif("LONGHAUL_DATA" not in os.environ, reason="needs the folder of data files")
def test_no_program_of_a_published_suite_can_be_imported(tmp_path: Path) -> None:
    folder = Path(os.environ["LONGHAUL_DATA"])
    rows = [json.loads(text) for text in (folder / "cruxeval.jsonl").read_text().splitlines()[:40]]
    ours = [line("# mine\n" + row["code"], row["input"]) for row in rows]
    write(tmp_path / "theirs.jsonl", *ours, *[triplet(row["code"], row["input"], row["output"]) for row in rows])
    done = command("import", "theirs.jsonl", "--json", cwd=tmp_path, LONGHAUL_DATA=str(folder))
    assert done.returncode == ExitCode.INPUT
    assert json.loads(done.stdout)["invalid"] == {"held_out": 120}
    assert "is missing, so" not in done.stderr


def test_without_the_data_files_a_note_says_what_cannot_be_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", line())
    assert "note: cruxeval.jsonl is missing, so" in command("import", "a.jsonl", cwd=tmp_path).stdout


# --- without a worker ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["import"], "import needs a SOURCE"),
        (["export", "a.jsonl"], "export needs --out FILE"),
        (["show", "--limit", "-1"], "--limit -1: 0 (all) or more"),
        (["import", "a.jsonl", "--profile", "nowhere"], "nowhere"),
    ],
)
def test_what_makes_no_sense_is_told_at_once(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *words]) in (ExitCode.USAGE, ExitCode.INPUT)
    said = capsys.readouterr().err
    assert text in said and "\nnext:  " in said


REPORT = {
    "into": "set.jsonl", "before": 1, "after": 2, "read": 3, "valid": 2, "added": 1, "duplicate": 1, "conflict": 0,
    "invalid": {"torn": 1}, "dropped": {"run": 1}, "written": True, "backup": "backups/set-000001.jsonl",
    "report": "set.report.json", "conflicts": [], "rejected": [{"source": "a", "line": 3, "reason": "torn",
    "text": "\x1b[2J"}], "sources": [{"source": "a", "read": 3, "valid": 2, "added": 1, "duplicate": 1, "conflict": 0,
    "invalid": {"torn": 1}}],
}  # fmt: skip


def test_a_report_in_lines() -> None:
    assert report_lines(REPORT) == [
        "source  read  valid  added  duplicate  conflict  invalid",
        "a          3      2      1          1         0        1",
        "invalid    torn 1",
        "dropped    from the data set: run 1",
        "  a:3: torn: ␛[2J",
        "data set   set.jsonl: 2 tasks, 1 before",
        "back-up    backups/set-000001.jsonl",
        "report     set.report.json",
    ]


def test_a_conflict_in_lines_names_both_places() -> None:
    conflict = {"source": "b", "line": 2, "outputs": ["3"], "kept": [["1", "2"]], "kept_from": "a:1"}
    assert "  b:2: conflict: says 3; kept is 2 (from a:1)" in report_lines({**REPORT, "conflicts": [conflict]})


def test_a_task_in_lines_has_nothing_that_could_move_the_cursor() -> None:
    task = {"task": "ind", "program": "def f(a):\n    return '\x1b[2J'", "inputs": ["1", "2"], "outputs": ["1", "2"],
            "key": "abcdef0123456789", "message": "m\x07", "origin": {"run": "night", "step": 7}, "source": "selfplay",
            "solve_rate": 0.25}  # fmt: skip
    assert task_lines(task) == [
        "induction, abcdef012345, run night step 7, selfplay, solved 25 %",
        "    def f(a):",
        "        return '␛[2J'",
        "  f(1)  ->  1",
        "  f(2)  ->  2",
        "  message: m␇",
    ]


class Screen(io.StringIO):
    is_terminal = False

    def isatty(self) -> bool:
        return self.is_terminal


class Terminal(Screen):
    is_terminal = True


def test_progress_is_one_changing_line_on_a_terminal_and_seldom_a_line_elsewhere() -> None:
    for screen, expected in (
        (Screen(), "reading a\nnote: careful\n"),
        (Terminal(), "reading a\n\r\x1b[K  0 of 300 programs run\r\x1b[K  300 of 300 programs run"
                     "\r\x1b[Knote: careful\n"),
    ):  # fmt: skip
        progress = Progress(screen)
        for message in (
            Reading("reading a"),
            Checked(0, 300),
            Checked(300, 300),
            Note("careful"),
        ):
            progress.hear(message)
        assert screen.getvalue() == expected
