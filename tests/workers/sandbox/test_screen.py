"""The screen's rules, each met by name and never by substring."""

from __future__ import annotations

import pytest

from workers.sandbox.screen import screen

BODY = "\ndef f(x):\n    return x"


@pytest.mark.parametrize(
    "program",
    [
        "def f(x): return x",
        "def parse_input(x): return x\ndef f(x): return parse_input(x)",
        "def f(random): return random + 1",
        "class A:\n    def __init__(self): self.__dict__['a'] = 1\n    def m(self): return 2\ndef f(x): return A().m()",
        "from math import sqrt\nimport collections.abc" + BODY,
        "def f(*, x): return x",
        "def f(x):\n    if x:\n        return 1",
    ],
)
def test_clean_programs_pass(program: str) -> None:
    assert screen(program) is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os" + BODY, "banned import: os"),
        ("from os.path import join" + BODY, "banned import: os.path"),
        ("import random as r" + BODY, "banned import: random"),
        ("def f(x):\n    import time\n    return x", "banned import: time"),
        ("from . import a" + BODY, "relative import"),
        ("def f(x): return eval(x)", "banned call: eval"),
        ("def f(x): return id(x)", "banned call: id"),
        ("def f(x): return x.__class__", "attribute with two leading underscores outside a class: __class__"),
        ("def f(x) return x", "syntax error: expected ':' (line 1)"),
        ("x = 1", "needs one top-level function f, has 0"),
        (BODY + BODY, "needs one top-level function f, has 2"),
        ("def f(): return 1", "f has no parameter"),
        ("def f(x): pass", "f returns no value"),
        ("def f(x):\n    def g(): return 1\n    return", "f returns no value"),
    ],
)
def test_each_broken_rule_has_its_reason(program: str, reason: str) -> None:
    assert screen(program) == reason


@pytest.mark.parametrize(
    "program", ["a\0b", "(" * 60_000, "-" * 60_000 + "1", "x" * 70_000, "\ud800", "1+" * 30_000 + "1", ".a" * 30_000]
)
def test_hostile_sources_get_a_reason_and_not_an_exception(program: str) -> None:
    assert screen(program)


def test_another_entry_may_be_named() -> None:
    assert screen("def solve(x): return x", entry="solve") is None
    assert screen("def g(): pass", entry="g", needs_value=False) is None
