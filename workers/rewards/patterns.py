"""Searches hostile text with a pattern of the user, for a bounded time.

Python's `re` cannot be interrupted, and `(a|a)*$` takes it years on forty letters. The module `regex` counts its time
while it searches, and gives up.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import regex

LONGEST_PATTERN = 2_000
LONGEST_TEXT = 100_000
"""Characters. Bounds the memory of a search; time is bounded by the clock."""
TIME_S = 1.0
"""CPU time of one search: that of this process, so a busy machine changes no verdict."""


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
        re.compile(pattern)
        return regex.compile(pattern, regex.VERSION0 | (regex.IGNORECASE if ignore_case else 0))
    except (re.error, regex.error, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(f"the pattern {pattern[:100]!r} cannot be used: {error}") from error


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
