"""Answers that are numbers: read exactly, never run."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.suites.numbers import after_mark, read_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18", 18), (" 18 ", 18), ("18.", 18), ("18..", 18), ("18.0", 18), ("$18", 18), ("$ 18", 18), ("18%", 18),
        ("1,234", 1234), ("$1,234.50", Fraction("1234.5")), ("12,345,678", 12345678), ("-5", -5), ("-$5", -5),
        ("$-5", -5), ("+5", 5), (".5", Fraction(1, 2)), ("3/4", Fraction(3, 4)), ("18 eggs a day.", 18),
        ("18, as said", 18), ("**18**", 18), ("**$18.00** dollars", 18), ("0.1", Fraction(1, 10)), ("007", 7),
        ("1e", 1), ("5 %.", 5),
    ],
)  # fmt: skip
def test_a_number_is_read_whatever_stands_around_it(text: str, expected: Fraction) -> None:
    assert read_number(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "eggs", "x = 18", "3*4", "3 4", "2 1/2", "1e5", "1E5", "1/0", "1.5/2", "1,23", "1,2345", "18/", "2**3", "--5",
     "None", "__import__('os')", "١٨", "0x10", "1.2.3"],
)  # fmt: skip
def test_what_is_no_plain_number_is_none(text: str) -> None:
    assert read_number(text) is None


@given(st.text(max_size=80))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = read_number(text)
    assert found is None or isinstance(found, Fraction)


@given(st.integers(-(10**15), 10**15))
def test_thousands_commas_change_nothing(number: int) -> None:
    assert read_number(f"{number:,}") == read_number(str(number)) == number


def test_a_longer_number_than_anybody_means_is_cut_in_time_that_does_not_grow() -> None:
    assert read_number("9" * 5_000_000) is not None
    assert read_number("9" * 5_000_000) != read_number("9" * 10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so\n#### 18\n", "18"),
        ("#### 18 #### 19", "18 #### 19"),
        ("#### 1\nQuestion: ...\n#### 2", "1"),
        ("none", None),
        ("####", ""),
    ],
)
def test_the_first_mark_counts(text: str, expected: str | None) -> None:
    assert after_mark(text) == expected
