"""Keys of programs and examples: equal where only form differs."""

from __future__ import annotations

import pytest

from workers.sandbox.literal import Rejected
from workers.sandbox.normalise import example_key, program_key

PLAIN = "def f(a, b):\n    c = a + b\n    return c"


@pytest.mark.parametrize(
    "program",
    [
        "# comment\ndef f( a,b ):\n\n    c = (a+b)  # sum\n    return c\n",
        'def f(a, b):\n    """Adds."""\n    c = a + b\n    return c',
        '"""Module."""\ndef f(a: int, b: "int" = ...) -> int: ...'.replace(" = ...) -> int: ...", ") -> int:")
        + "\n    c: int = a + b\n    return c",
    ],
)
def test_form_does_not_change_the_key(program: str) -> None:
    assert program_key(program) == program_key(PLAIN)


@pytest.mark.parametrize("program", ["def f(a, b):\n    d = a + b\n    return d", PLAIN.replace("+", "-")])
def test_other_code_has_another_key(program: str) -> None:
    assert program_key(program) != program_key(PLAIN)


def test_spacing_of_inputs_does_not_change_the_key() -> None:
    assert example_key(PLAIN, "1,2") == example_key(PLAIN + "  # same", "1, 2")
    assert example_key(PLAIN, "1,2") != example_key(PLAIN, "2, 1")


def test_inputs_of_a_problem_have_no_order() -> None:
    assert example_key(PLAIN, ["1,2", "3,4"]) == example_key(PLAIN, ["3, 4", "1, 2"])


def test_inputs_that_are_no_literals_have_no_key() -> None:
    with pytest.raises(Rejected):
        example_key(PLAIN, "g()")
