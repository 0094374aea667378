"""`logs`: the last lines, what follows them, and the end."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.commands import logs
from orchestrator.commands.logs import Lines, followed
from state.layout import RunDir
from tests import REPOSITORY
from tests.builders import build_store


def arguments(runs: Path, *, lines: int = 40, as_json: bool = False) -> argparse.Namespace:
    return argparse.Namespace(runs=runs, run=None, json=as_json, lines=lines, follow=False)


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=40)), st.integers(0, 12))
def test_the_last_lines_are_those_of_the_whole_file(lines: list[str], count: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        logs.CHUNK, whole = 7, logs.CHUNK
        try:
            found = len(list(Lines(path, count)()))
        finally:
            logs.CHUNK = whole
        assert found == min(count, len(lines))


def test_a_line_appears_once_it_is_whole_and_a_log_that_begins_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthr")
    new = Lines(path, 1)
    assert list(new()) == [], "the last line is not whole"
    path.write_text("one\ntwo\nthree\nfour\n")
    assert list(new()) == ["three", "four"]
    assert list(new()) == []
    path.write_text("anew\n")
    assert list(new()) == ["anew"]


def test_what_was_written_before_the_end_is_shown_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_S", 0.0)
    written = iter([["a"], [], ["b", "c"]])
    alive = iter([True, True, False])
    assert list(followed(lambda: iter(next(written)), lambda: next(alive))) == ["a", "b", "c"]


def test_a_log_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = build_store(tmp_path / "night")
    run.log.write_text("\x1b[2Jgone\n")
    assert logs.run(arguments(tmp_path)) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_run_without_a_log_has_no_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_store(tmp_path / "night")
    assert logs.run(arguments(tmp_path)) == 0
    assert capsys.readouterr().out == ""


def test_events_are_one_object_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_store(tmp_path / "night", cycles=3, steps=30)
    assert logs.run(arguments(tmp_path, lines=2, as_json=True)) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 2 and {"at", "cycle", "step", "type", "text"} == set(found[0])


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator"]
    where = ["--runs", str(tmp_path), "--run", "fake"]
    knobs = ["--set", "run.max_cycles=3", "--set", "fake.step_s=0.1"]
    with subprocess.Popen(
        [*command, "run", "--plain", "--profile", "fake", *where, *knobs], cwd=REPOSITORY, stdout=subprocess.PIPE
    ) as master:
        assert master.stdout is not None
        for line in master.stdout:
            if b"checkpoint of step" in line:
                break
        done = subprocess.run(
            [*command, "logs", "-f", *where], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        master.communicate()
    assert done.returncode == 0 and done.stderr == ""
    assert "run 'fake' begins" in done.stdout and "finished" in done.stdout
    log = RunDir(tmp_path / "fake").log.read_text().splitlines()
    assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in log]
