"""Lines between two processes by a file: whole, in order, each once."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from state.line_file import LineReader, append


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


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line)))
def test_what_is_appended_comes_back(tmp_path_factory: object, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"  # type: ignore[attr-defined]
    for line in lines:
        append(path, line)
    assert LineReader(path).read() == lines
