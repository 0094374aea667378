"""The little Python subset of the pocket model: random programs, their semantics, and the held-out split.

A program is straight-line, single-assignment Python over short strings from an alphabet of ten letters:

    def f(a):
        b = a[1:] + a[:1]
        c = b.replace('u', 'w')
        return c

Each statement is easy to apply and easy to invert, but a chain of them is hard to evaluate in one forward pass; this
makes step-by-step work pay off. Nothing here executes source text: `run_program` interprets statements, which is fast
enough to generate a corpus.
"""

import ast
import hashlib
from collections.abc import Callable
from random import Random
from typing import NamedTuple

LETTERS = "uvwxyUVWXY"
VARIABLES = "abcdeghijkl"
"""`a` is the argument; each statement binds the next one. `f` is the function."""
MAX_STATEMENTS = len(VARIABLES) - 1
MIN_VALUE, MAX_VALUE = 1, 7
"""Minimum and maximum length of every intermediate value of a generated program."""
NUM_FOLDS = 8
"""One in NUM_FOLDS programs is held out of every corpus."""


class Statement(NamedTuple):
    """One assignment: its kind and its letter arguments."""

    kind: str
    x: str = ""
    y: str = ""


Program = tuple[Statement, ...]

KINDS: dict[str, tuple[str, Callable[[str, str, str], str]]] = {
    "reverse": ("{p}[::-1]", lambda v, x, y: v[::-1]),
    "drop_first": ("{p}[1:]", lambda v, x, y: v[1:]),
    "drop_last": ("{p}[:-1]", lambda v, x, y: v[:-1]),
    "rotate_left": ("{p}[1:] + {p}[:1]", lambda v, x, y: v[1:] + v[:1]),
    "rotate_right": ("{p}[-1:] + {p}[:-1]", lambda v, x, y: v[-1:] + v[:-1]),
    "every_other": ("{p}[::2]", lambda v, x, y: v[::2]),
    "swapcase": ("{p}.swapcase()", lambda v, x, y: v.swapcase()),
    "upper": ("{p}.upper()", lambda v, x, y: v.upper()),
    "append": ("{p} + '{x}'", lambda v, x, y: v + x),
    "prepend": ("'{x}' + {p}", lambda v, x, y: x + v),
    "replace": ("{p}.replace('{x}', '{y}')", lambda v, x, y: v.replace(x, y)),
}
"""Statement kind -> source template (the previous variable is {p}), and function."""

KIND_NAMES = tuple(KINDS)
PLAIN = tuple(Statement(kind) for kind in KIND_NAMES[:8])
"""The statements without letter arguments."""


def apply(statement: Statement, value: str) -> str:
    """The result of a statement applied to `value`."""
    return KINDS[statement.kind][1](value, statement.x, statement.y)


def trace(program: Program, value: str) -> list[str]:
    """Values of all variables in order, the argument first."""
    values = [value]
    for statement in program:
        values.append(KINDS[statement.kind][1](values[-1], statement.x, statement.y))
    return values


def run_program(program: Program, value: str) -> str:
    """What the program returns."""
    for statement in program:
        value = KINDS[statement.kind][1](value, statement.x, statement.y)
    return value


def render_statement(statement: Statement, index: int) -> str:
    """The line that binds variable `index`, with the newline before it."""
    template = KINDS[statement.kind][0]
    right = template.format(p=VARIABLES[index - 1], x=statement.x, y=statement.y)
    return f"\n    {VARIABLES[index]} = {right}"


def render(program: Program) -> str:
    """Source text of a program. Distinct programs have distinct texts."""
    body = "".join(render_statement(statement, index) for index, statement in enumerate(program, start=1))
    return f"def f(a):{body}\n    return {VARIABLES[len(program)]}"


def normal_form(program_text: str) -> str:
    """Canonical text: equal for two programs if and only if their syntax trees are equal. Raises SyntaxError.

    A rendered program is its own normal form; a test checks this for all statement kinds.
    """
    return ast.unparse(ast.parse(program_text))


def is_held_out(normal_text: str) -> bool:
    """Whether a program, given in normal form, is reserved for evaluation and excluded from every corpus."""
    return hashlib.md5(normal_text.encode(), usedforsecurity=False).digest()[0] % NUM_FOLDS == 0


def random_value(rng: Random, low: int = 3, high: int = 6) -> str:
    """A string of `low` to `high` letters."""
    return "".join(rng.choices(LETTERS, k=rng.randint(low, high)))


def random_statement(rng: Random, value: str) -> Statement:
    """A statement of a uniformly random kind; the letter that `replace` replaces mostly occurs in `value`.

    `replace` keeps the letter's case, so that a preimage can be found without looking at earlier statements.
    """
    kind = KIND_NAMES[int(rng.random() * 11)]
    if kind in ("append", "prepend"):
        return Statement(kind, LETTERS[int(rng.random() * 10)])
    if kind != "replace":
        return Statement(kind)
    x = rng.choice(value) if rng.random() < 0.85 else LETTERS[int(rng.random() * 10)]
    half = LETTERS[:5] if x.islower() else LETTERS[5:]
    return Statement(kind, x, rng.choice([letter for letter in half if letter != x]))


def random_program(rng: Random, num_statements: int, inputs: list[str]) -> Program:
    """A random program whose intermediate values have 1 to 7 letters on each of `inputs`."""
    values = inputs
    program: list[Statement] = []
    while len(program) < num_statements:
        statement = random_statement(rng, values[0])
        new_values = [apply(statement, value) for value in values]
        if all(MIN_VALUE <= len(value) <= MAX_VALUE for value in new_values):
            program.append(statement)
            values = new_values
    return tuple(program)
