"""The little language: its text is Python, its meaning is Python's, and its normal form is its text."""

from random import Random

import pytest

from workers.pocket.evaluation import parse_program
from workers.pocket.language import (
    KIND_NAMES,
    MAX_STATEMENTS,
    VARIABLES,
    Program,
    Statement,
    normal_form,
    random_program,
    random_value,
    render,
    run_program,
)


def run_as_python(program_text: str, value: str) -> str:
    scope: dict = {}
    exec(program_text, scope)  # noqa: S102  # programs of our own generator
    return scope["f"](value)


def programs(count: int) -> list[tuple[Program, str]]:
    rng = Random(5)
    values = [random_value(rng) for _ in range(count)]
    return [(random_program(rng, rng.randint(1, MAX_STATEMENTS), [value]), value) for value in values]


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_each_statement_means_what_python_says(kind: str) -> None:
    program = (Statement(kind, "u", "w"),)
    for value in ("u", "uVw", "XuUyw", "wwUuxY"):
        assert run_program(program, value) == run_as_python(render(program), value)


def test_random_programs_mean_what_python_says() -> None:
    for program, value in programs(200):
        assert run_program(program, value) == run_as_python(render(program), value)


def test_equal_syntax_trees_are_equal_texts() -> None:
    for program, _ in programs(200):
        assert normal_form(render(program)) == render(program)


def test_a_text_is_parsed_back_into_its_program() -> None:
    for program, _ in programs(200):
        assert parse_program(render(program)) == program


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):\n    return a + a",
        "def f(a):\n    b = a.lower()\n    return b",
        "def f(a):\n    b = a[::-1]\n    return a",
        "def f(a):\n    b = b[::-1]\n    return b",
        "def f(a):\n    b = a[1:] + b[:1]\n    return b",
    ],
)
def test_other_python_is_not_of_the_language(text: str) -> None:
    assert parse_program(text) is None


def test_variables_skip_the_name_of_the_function() -> None:
    assert "f" not in VARIABLES
