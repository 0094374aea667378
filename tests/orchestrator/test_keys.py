"""Bytes of a terminal become names of keys, whole or in parts, and pastes are told from keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.display.keys import PASTE, PASTE_BEGINS, PASTE_ENDS, KeyReader, deliberate


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"p", ["p"]),
        (b"++", ["+", "+"]),
        (b"\x18", ["ctrl-x"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[A\x1bOB\x1b[5~", ["up", "down", "page-up"]),
        (b"\r\x7f", ["enter", "backspace"]),
        pytest.param(b"\x1b[1;5A", [], id="an unknown sequence is no key, and its letters are none"),
        pytest.param("é語".encode(), ["é", "語"], id="characters of several bytes"),
        pytest.param(b"\xff\xfeq", ["q"], id="bytes that are not UTF-8 are dropped"),
        pytest.param(PASTE_BEGINS + b"qpv\x18\x03" + PASTE_ENDS + b"e", [PASTE, "e"], id="nothing in a paste is a key"),
    ],
)
def test_bytes_are_keys(data: bytes, keys: list[str]) -> None:
    assert KeyReader().read(data) == keys


def test_a_paste_in_parts_is_one() -> None:
    reader = KeyReader()
    data = PASTE_BEGINS + b"rm -rf q v p" + PASTE_ENDS
    parts = [data[:8], data[8:12], data[12:-3], data[-3:] + b"e"]
    assert [reader.read(part) for part in parts] == [[], [], [], [PASTE, "e"]]


@given(st.binary())
def test_any_bytes_are_read(data: bytes) -> None:
    assert all(key.isprintable() for key in KeyReader().read(data))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param(["p", "+"], ["p", "+"], id="a quick person"),
        pytest.param(["down"] * 9, ["down"] * 9, id="a key that repeats"),
        pytest.param(list("stop the run"), [], id="a paste that is not marked"),
        pytest.param([*"hello", "up", "ctrl-x"], ["up", "ctrl-x"], id="keys with names are no text"),
        pytest.param([PASTE, "e"], ["e"], id="a marked paste"),
    ],
)
def test_a_paste_is_no_command(keys: list[str], expected: list[str]) -> None:
    assert deliberate(keys) == expected
