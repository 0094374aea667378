"""The tests of a program: statements, inputs with outputs, calls with values; and their form in a file. (pure)

In JSON a program's tests are one list. A text is a statement of Python that must not raise; {"input", "output"} is
standard input and the expected output; {"call", "input", "output"} calls a function: the source of its arguments, and
of the value that it must return, and perhaps of an "other" one that is right too. All of them are text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, to_builtins

from workers.sandbox.literal import Rejected, parse_arguments, parse_value, render
from workers.sandbox.server.protocols import BadRequest, list_of, pairs_of


class BadTests(ValueError):
    """These are no tests that can be run; the message is the reason, with the number of the first bad one from 1."""


class Pair(Struct, frozen=True):
    """Standard input, and the output that a program must print."""

    input: str
    output: str


class Call(Struct, frozen=True, omit_defaults=True):
    """A function's name, the source of its arguments (empty: none), and that of the value that it must return."""

    call: str
    input: str
    output: str
    other: str = ""
    """A second value that is right too; empty: none."""


UnitTest = str | Pair | Call
"""A text is a statement."""
Tests = tuple[UnitTest, ...]
"""Of one program: all of one kind."""


def read_tests(given: Any) -> Tests:
    """The tests in a list, its JSON text, or open-instruct's packed text. Raises BadTests, also for none at all."""
    try:
        items = list_of(given)
    except BadRequest as error:
        raise BadTests(str(error)) from error
    if not items:
        raise BadTests("there are no tests")
    found: Tests = tuple(_read(number, one) for number, one in enumerate(items, start=1))
    other = next((number for number, one in enumerate(found, start=1) if type(one) is not type(found[0])), None)
    if other is not None:
        raise BadTests(f"test {other} is of another kind than test 1")
    return found


def _read(number: int, found: Any) -> UnitTest:
    if isinstance(found, str):
        if not found.strip():
            raise BadTests(f"test {number} is empty")
        return found
    if isinstance(found, dict) and "call" in found:
        return _read_call(number, found)
    try:
        ((given, expected),) = pairs_of([found])
    except BadRequest as error:
        raise BadTests(f"test {number} must be an object with the texts input and output, or a statement") from error
    return Pair(given, expected)


def _read_call(number: int, found: dict[str, Any]) -> Call:
    name, given, value, other = (found.get(key, "") for key in ("call", "input", "output", "other"))
    if not all(isinstance(one, str) for one in (name, given, value, other)) or not value:
        raise BadTests(f"test {number} must have the texts call, input and output")
    if not name.isidentifier():
        raise BadTests(f"test {number} calls {name[:60]!r}, which is not the name of a function")
    try:
        if given.strip():
            parse_arguments(given)
        for one in (value, *([other] if other else [])):
            parse_value(one)
    except Rejected as error:
        raise BadTests(f"test {number} has an input or output that is not a literal: {error}") from error
    return Call(name, given, value, other)


def call_of(number: int, name: str, arguments: Sequence[Any], *values: Any) -> Call:
    """The test that calls `name` with these arguments. values: one or two that are right. All are as JSON holds them.

    number: of the test, for the message. Raises BadTests if no literal can express them.
    """
    texts = dict(zip(("output", "other"), map(render, values), strict=False))
    return _read_call(number, {"call": name, "input": ", ".join(map(render, arguments)), **texts})


def written_tests(tests: Tests) -> list[Any]:
    """The JSON list; `read_tests` reads it back."""
    return [one if isinstance(one, str) else to_builtins(one) for one in tests]


def text_of(tests: Tests) -> str:
    """The JSON list as text: the right answer of a problem with tests."""
    return json.dumps(written_tests(tests))


def for_code_server(tests: Tests) -> list[Any]:
    """The tests as the code server takes them: it knows no calls, which become statements."""
    return written_tests(tuple(_as_statement(one) if isinstance(one, Call) else one for one in tests))


def _as_statement(test: Call) -> str:
    return f"assert {test.call}({test.input}) in ({test.output}, {test.other or test.output})"
