"""A data set is written whole or not at all, keeps its last three states, and is used only if it verifies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from tests import REPOSITORY
from tests.workers.data.given import ADD, TWICE, line
from workers.data.data_set import Header, backup_files, check_target, locked, read_data_set, write_data_set
from workers.data.record import Record, parse_line


def records(*programs: str) -> list[Record]:
    return [parse_line(line(program, output="2").encode())[0] for program in programs]


def written(path: Path, *programs: str) -> bytes:
    write_data_set(read_data_set(path), records(*programs), Header())
    return path.read_bytes()


def test_a_data_set_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    assert read_data_set(path).records == ()
    written(path, ADD, TWICE)
    found = read_data_set(path)
    assert found.records == tuple(records(ADD, TWICE))
    assert (found.header.revision, found.header.tasks, found.header.counts) == (1, 2, {"ded": 2})
    assert json.loads(path.read_text().splitlines()[1])["program"] == ADD, "any program reads it line by line"


def test_the_last_three_states_stay_as_back_ups(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    states = [written(path, *[ADD] * count) for count in range(1, 7)]
    assert [file.name for file in backup_files(path)] == ["set-000003.jsonl", "set-000004.jsonl", "set-000005.jsonl"]
    assert [file.read_bytes() for file in backup_files(path)] == states[2:5]


CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a cut file": (lambda content: content[:-9], "it was cut or changed"),
    "a changed output": (lambda content: content.replace(b'"2"', b'"3"', 1), "it was cut or changed"),
    "a file without a header": (lambda content: content.partition(b"\n")[2], "it has no header"),
    "a newer form": (lambda content: content.replace(b'"version":1', b'"version":2'), "a newer program wrote it"),
    "no JSON at all": (lambda content: b"\x00" * 50, "it has no header"),
    "an empty file": (lambda content: b"", "it has no header"),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_what_does_not_verify_is_not_added_to(change: Callable[[bytes], bytes], why: str, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(change(written(path, ADD, TWICE)))
    with pytest.raises(LonghaulError, match=why) as refused:
        read_data_set(path)
    assert refused.value.exit_code == ExitCode.INPUT
    assert "data import" in refused.value.next_command and "set-new.jsonl" in refused.value.next_command


WRITE = """
import sys
from pathlib import Path
from workers.data.data_set import Header, read_data_set, write_data_set
from workers.data.record import Record
three = [Record(task="ded", program=program, inputs=("1",), outputs=("2",)) for program in "abc"]
write_data_set(read_data_set(Path(sys.argv[1])), three, Header())
"""


@pytest.mark.parametrize(
    ("crash", "is_old"),
    [
        ("durable.before_rename:1", True),  # of the back-up
        ("durable.after_rename:1", True),
        ("durable.before_rename:2", True),  # of the set
        ("durable.after_rename:2", False),
    ],
)
def test_a_kill_anywhere_leaves_the_old_set_or_the_new_one(crash: str, is_old: bool, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    old = written(path, ADD)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_CRASHPOINT": crash}
    killed = subprocess.run([sys.executable, "-c", WRITE, str(path)], env=environment, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (path.read_bytes() == old) == is_old
    assert read_data_set(path).header.tasks == (1 if is_old else 3)
    written(path, ADD, ADD)
    assert read_data_set(path).header.tasks == 2, "and what it left is in nobody's way"
    assert not list(tmp_path.rglob("*.tmp"))


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    with locked(path), pytest.raises(LonghaulError) as refused, locked(path):
        pass
    assert refused.value.exit_code == ExitCode.LOCKED
    with locked(path):
        pass


@pytest.mark.parametrize("where", ["taken", "file/set.jsonl"])
def test_a_place_where_no_file_can_be_is_refused(where: str, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(LonghaulError, match="cannot be written") as refused:
        check_target(tmp_path / where)
    assert refused.value.exit_code == ExitCode.INPUT
