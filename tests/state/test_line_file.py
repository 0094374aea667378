"""Lines between two processes by a file: whole, in order, each once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.line_file import MAX_BYTES, LineReader, append


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert LineReader(tmp_path / "none").read() == []


def test_each_line_is_read_once_by_each_reader(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    first = LineReader(path)
    append(path, b"one")
    assert first.read() == [b"one"]
    append(path, b"two")
    assert first.read() == [b"two"]
    assert first.read() == []
    assert LineReader(path).read() == [b"one", b"two"]


def test_a_line_that_is_half_written_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    reader = LineReader(path)
    path.write_bytes(b"whole\nha")
    assert reader.read() == [b"whole"]
    with path.open("ab") as file:
        file.write(b"lf\n")
    assert reader.read() == [b"half"]


@pytest.mark.parametrize("part", [b"", b"ha", b"half"], ids=["nothing", "a part", "all but the newline"])
def test_a_repeated_call_completes_what_a_failed_one_left(part: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"whole\n" + part)
    append(path, b"half")
    assert path.read_bytes() == b"whole\nhalf\n"


def test_a_part_of_another_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"ha")
    append(path, b"other")
    assert LineReader(path).read() == [b"ha", b"other"]


def test_a_line_longer_than_one_read_is_read_whole(tmp_path: Path) -> None:
    lines = [b"x" * (2 * MAX_BYTES), b"next"]
    for line in lines:
        append(tmp_path / "lines", line)
    reader = LineReader(tmp_path / "lines")
    assert [*reader.read(), *reader.read()] == lines


def test_a_file_that_cannot_be_read_once_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    folder, away = tmp_path / "folder", tmp_path / "away"
    folder.mkdir()
    append(folder / "lines", b"one")
    reader = LineReader(folder / "lines")
    assert reader.read() == [b"one"]
    append(folder / "lines", b"two")
    folder.rename(away)
    folder.touch()  # not a folder: an error that is not "no such file"
    assert reader.read() == []
    folder.unlink()
    away.rename(folder)
    assert reader.read() == [b"two"]


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line)))
def test_what_is_appended_comes_back(tmp_path_factory: object, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"  # type: ignore[attr-defined]
    for line in lines:
        append(path, line)
    assert LineReader(path).read() == lines
