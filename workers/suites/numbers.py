"""Answers that are numbers, read from a model's text without running any of it, and compared exactly. (pure)"""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST = 64
"""Characters of a number that are looked at; nobody's right answer is longer."""

_NUMBER = re.compile(
    r"""
    \s* (?P<sign>[-+]?) \s* [$€£]? \s* (?P<late_sign>(?<=[$€£])-|)
    (?P<whole> \d{1,3}(?:,\d{3})+ | \d+ | (?=\.\d) )
    (?: \. (?P<part>\d+) )?
    (?P<over> / \d+ )?
    \s* %? \s* \.* (?![\d/*^]|,\d|\.\d)
    """,
    re.VERBOSE | re.ASCII,
)


def read_number(text: str) -> Fraction | None:
    """The number that `text` begins with; None if it begins with none.

    `$`, thousands commas, `%`, trailing dots and words after it do not count: `$1,234.50` is 1234.5, `18 eggs.` is 18,
    `50%` is 50 (as the data writes it). `3/4` is a number; `3*4`, `1e5`, `0x10` and `2 1/2` are none.
    """
    text = text.lstrip()[:LONGEST]
    if text.startswith("**"):  # bold, as chat models like it
        text = text[2:].partition("**")[0]
    found = _NUMBER.match(text)
    if found is None or re.match(r"[eExX]\d|\s*\d", text[found.end() : found.end() + 4]):
        return None
    whole, part = found["whole"].replace(",", ""), found["part"] or ""
    value = Fraction(int((whole + part) or "0"), 10 ** len(part))
    if found["over"]:
        below = int(found["over"][1:])
        if part or below == 0:
            return None
        value /= below
    is_negative = (found["sign"] == "-") != (found["late_sign"] == "-")
    return -value if is_negative else value


def after_mark(text: str, mark: str = "####") -> str | None:
    """What follows the first `mark`, to the end of its line; None where there is no mark."""
    _, found, rest = text.partition(mark)
    return rest.strip().split("\n", 1)[0] if found else None
