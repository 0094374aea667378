"""The names of the parts of a reward: those that are built in, and functions of the user. (pure)"""

from __future__ import annotations

BUILT_IN = (
    "correct",
    "format",
    "length",
    "exact",
    "fuzzy",
    "choice",
    "json",
    "regex",
    "xml",
    "overlong",
    "cosine",
    "repetition",
    "language",
    "tests",
    "environment",
)
"""Parts with a name of their own; workers/rewards/ has a file for each."""
TESTS = "tests"
"""The part that runs programs. With it, rows may have tests in place of an answer."""
ENVIRONMENT = "environment"
"""The part that an environment gives."""
ON_COMPLETIONS = tuple(name for name in BUILT_IN if name != ENVIRONMENT)
"""Built-in parts that judge a completion by itself."""
ENVIRONMENTS = ("guess", "calculator")
"""Built-in environments."""
LIBRARY = "verifiers:"
"""Begins the name of an environment of the library verifiers."""
ON_ANSWERS = frozenset({"correct", "length", "cosine"})
"""Built-in parts that need the right answer to each problem."""
PENALTIES = frozenset({"length", "overlong", "repetition"})
"""Built-in parts that only take away: at most 0."""


def is_function(name: str) -> bool:
    """Whether the name is one of a function: FILE.py:NAME or MODULE:NAME."""
    place, colon, function = name.rpartition(":")
    return bool(colon and place) and function.isidentifier()


def is_slow(name: str) -> bool:
    """Whether the part takes time, so that it is computed while other rollouts still decode."""
    return is_function(name) or name == TESTS


def part_name(name: str) -> str:
    """How a part is called in metrics and rollouts: a built-in part by its name, a function by its own."""
    return name.rpartition(":")[2]
