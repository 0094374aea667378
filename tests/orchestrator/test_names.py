"""The name of a run is that of a directory in the folder of all runs, and of nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import COMMANDS, main
from profiles.errors import ExitCode, LonghaulError
from profiles.load import load_profile
from state.layout import RunDir, name_problem

IMPOSSIBLE = [
    "", ".", "..", "a/b", "/", "/tmp/x", "../x", "a/", "a\0b", "a\nb", "a\rb", "\x1b[2J", "a\u202eb", "a\u2028b",
    "x" * 256, "ä" * 128,
    ".half-x",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_name_that_leaves_the_folder_of_all_runs(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    needed = {
        "archive": ["x"],
        "backup": ["x"],
        "compare": ["x"],
        "completion": ["bash"],
        "data": ["stats", "x"],
        "export": ["--adapter", "--out", "x"],
        "restore": ["x"],
        "rewards": ["test", "x.py"],
    }
    more = needed.get(command, [])
    for name in IMPOSSIBLE:
        assert main([command, "--run", name, "--runs", str(runs), *more]) == ExitCode.USAGE, name
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("error: no run can be named '") and len(lines) == 3
        assert all(line.isprintable() for line in lines)
    assert sorted(tmp_path.rglob("*")) == [runs]


@given(st.text(max_size=300))
def test_a_name_that_is_taken_is_one_directory_below_the_folder(name: str) -> None:
    root = Path("/runs")
    if not name_problem(name):
        assert RunDir(root / name).root.parent == root and RunDir(root / name).name == name
        assert name.isprintable() and len(name.encode()) <= 255


@pytest.mark.parametrize("name", ["night-1", "café-試験-🜂", "with a space", "...", "-x", "x" * 255, "#1?%41"])
def test_names_that_a_file_system_takes_are_possible(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize("name", [name.replace("\0", "") for name in IMPOSSIBLE if name != "a\0b"])
def test_a_profile_cannot_have_such_a_name_either(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "fake"\nname = {json.dumps(name)}\n')
    with pytest.raises(LonghaulError) as caught:
        load_profile(str(path))
    assert caught.value.exit_code == ExitCode.INPUT
