"""top: another terminal's view of a run, which it never changes."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.commands.top import Watched
from orchestrator.display.canvas import LEAVE
from state.reader import Reader
from tests.builders import build_store
from tests.terminal import Terminal


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Terminal]:
    build_store(tmp_path / "night", state="running", reason="")
    terminal = Terminal(
        "-m", "orchestrator", "top", "--runs", str(tmp_path), columns=100, lines=30, input_is_terminal=True
    )
    yield terminal
    terminal.close()


def test_a_run_is_shown_and_q_leaves(top: Terminal, tmp_path: Path) -> None:
    before = (tmp_path / "night" / "state.db").read_bytes()
    top.until(lambda: "longhaul · night" in top.text and "quit" in top.text)
    for part in ("interrupted: no master holds this run", "deduction", "newest task", "found"):
        assert part in top.text, part
    os.write(top.master, b"q")
    assert top.process.wait(10) == 0
    top.read(0.2)
    assert top.raw.endswith(LEAVE.encode())
    assert (tmp_path / "night" / "state.db").read_bytes() == before
    # SQLite's own: any reader of a store in WAL mode makes them.
    assert {path.name for path in (tmp_path / "night").iterdir()} <= {"state.db", "state.db-wal", "state.db-shm"}


def test_a_question_mark_explains_the_run_and_a_second_one_goes_back(top: Terminal) -> None:
    top.until(lambda: "quit" in top.text)
    os.write(top.master, b"?")
    top.until(lambda: "how the run stands" in top.text)
    for part in ("It does not run, and nobody ended it", "A crash now would", "? goes back"):
        assert part in " ".join(top.text.split()), part
    assert "newest task " not in top.text
    os.write(top.master, b"?")
    top.until(lambda: "newest task" in top.text)
    assert "how the run stands" not in top.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(top: Terminal, number: signal.Signals) -> None:
    top.until(lambda: "quit" in top.text)
    top.process.send_signal(number)
    assert top.process.wait(10) == 0
    top.read(0.2)
    assert top.raw.endswith(LEAVE.encode())


def test_without_a_terminal_status_is_recommended(tmp_path: Path) -> None:
    import subprocess
    import sys

    build_store(tmp_path / "night")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "top", "--runs", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"next:  python -m orchestrator status --runs {tmp_path} --run night" in done.stderr


def test_the_store_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night")
    watched = Watched(run, Reader.open(run))
    first = watched.rows()
    assert watched.rows() is first
    with sqlite3.connect(run.store) as db:
        db.execute("UPDATE runs SET reseeds=2")
    db.close()
    assert watched.rows().history.reseeds == 2
    watched.reader.close()
