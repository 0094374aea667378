"""Searches hostile text with a pattern of the user, for a bounded time.

Python's `re` cannot be interrupted, and `(a|a)*$` takes it years on forty letters. The module `regex` counts its time
while it searches, and gives up.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import regex

LONGEST_PATTERN = 1_000
"""Characters. `regex` prepares the search of a literal in time that grows with the third power of its length."""
MOST_ITEMS = 10_000
"""Items of a pattern with its least counts written out, as `regex` does: `((a{1000}){1000}){1000}` would be 10^9."""
LONGEST_TEXT = 100_000
"""Characters. Bounds the memory of a search; time is bounded by the clock."""
TIME_S = 1.0
"""CPU time of one search: that of this process, so a busy machine changes no verdict."""


_TOKEN = re.compile(r"\(\?#[^)]*\)|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<count>\d+)(?:,\d*)?\}|.", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z-]*x")


class TooLong(Exception):
    """The search would take longer than allowed, or the text is longer."""


@lru_cache(maxsize=1024)
def compiled(pattern: str, ignore_case: bool = False) -> Any:
    """Raises ValueError, which says why, for what is no pattern of Python's `re`.

    Recursion and fuzzy matching, which `regex` also has, could take any amount of memory.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"the pattern has {len(pattern)} characters, and {LONGEST_PATTERN} are allowed")
    try:
        if re.compile(pattern).flags & re.VERBOSE or _VERBOSE.search(pattern):
            raise ValueError("a pattern with comments, (?x), is not taken")
        items = written_out(pattern)
        if items > MOST_ITEMS:
            raise ValueError(f"the pattern's counts make it {items} items long, and {MOST_ITEMS} are allowed")
        return regex.compile(pattern, regex.VERSION0 | (regex.IGNORECASE if ignore_case else 0))
    except (re.error, regex.error, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(f"the pattern {pattern[:100]!r} cannot be used: {error}") from error


def written_out(pattern: str) -> int:
    """Items of a pattern that `re` takes, with its counts written out: 6 of `a(bc){2,}d`. The marks of a group, such as
    `?:`, count too. (pure)"""
    groups, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "(":
            groups.append(0)
        elif text == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif token["count"]:
            more = last * (max(int(token["count"]), 1) - 1)
            groups[-1] += more
            last += more
        elif not text.startswith("(?#"):
            last = 1
            groups[-1] += 1
    return sum(groups)


def is_found(
    pattern: str, text: str, *, ignore_case: bool = False, whole: bool = False, time_s: float | None = None
) -> bool:
    """Whether the pattern matches somewhere, or with `whole` all of the text. time_s: by default TIME_S.

    Raises TooLong, or ValueError as `compiled` does.
    """
    limit = TIME_S if time_s is None else time_s
    one = compiled(pattern, ignore_case)
    if len(text) > LONGEST_TEXT:
        raise TooLong(f"the text has {len(text)} characters, and {LONGEST_TEXT} are searched")
    try:
        return (one.fullmatch if whole else one.search)(text, timeout=limit) is not None
    except TimeoutError as error:
        raise TooLong(f"the pattern {pattern[:100]!r} took more than {limit:.3g} s") from error
