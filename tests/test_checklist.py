"""Each row of the checklists of self-play and of GRPO is a test: by its number in the name of one, or of a case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = {"R": 11, "A": 11, "B": 14, "P": 11, "V": 13, "O": 9}
"""Of self-play: rewards, advantages and loss, buffers, parsing, validation, orchestration."""
GROUP_ROWS = 48
"""Of GRPO, as `row 7`."""
NAMED = re.compile(r"def test_([A-Za-z0-9_]+)")
CASE = re.compile(r"""id="([^"]+)\"""")
ROW = re.compile(r"(?<![a-z0-9])([rabpvo])(\d+)(?![a-z0-9])")
GROUP_ROW = re.compile(r"(?<![a-z0-9])row (\d+)(?![a-z0-9])")


def names() -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    return [name.replace("_", " ").lower() for text in texts for name in (*NAMED.findall(text), *CASE.findall(text))]


@pytest.mark.parametrize("letter", ROWS)
def test_every_row_is_a_test(letter: str) -> None:
    wanted = {f"{letter}{number}" for number in range(1, ROWS[letter] + 1)}
    assert wanted <= {f"{letter}{number}".upper() for name in names() for letter, number in ROW.findall(name)}


def test_every_row_of_grpo_is_a_test() -> None:
    assert set(range(1, GROUP_ROWS + 1)) <= {int(number) for name in names() for number in GROUP_ROW.findall(name)}
