"""Statements without effect: what is taken out, what stays, and that no value changes by it."""

from __future__ import annotations

import ast

import pytest

from workers.suites.held_out import HeldOutPrograms
from workers.tasks.closures import Definitions, Key
from workers.tasks.dead_code import remove_dead_code

BASE = "def f(a):\n    b = a[::-1]\n    return b + a"


def body(*lines: str) -> str:
    """The base with these lines before its own."""
    return "def f(a):\n" + "".join(f"    {line}\n" for line in lines) + "    b = a[::-1]\n    return b + a"


def without_dead_code(program: str) -> str:
    tree = ast.parse(program)
    remove_dead_code(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


def key(program: str) -> Key:
    return next(Definitions(program).entry_keys())


DEAD = {
    "an unread name": body("n = 0"),
    "a chain of them": body("n = len(a)", "m = [n, a.upper()]"),
    "a counter": body("n = 0", "n += 1", "n = n + 1"),
    "a length that is counted on": body("n = len(a)", "n += 1"),
    "a loop that only counts": body("n = 0", "for i in range(3):", "    n += i"),
    "a value that is overwritten": body("b = 1", "len(a)"),
    "an expression alone": body("a", "a.upper()", "(1, 2)"),
    "a branch never taken": body("if False:", "    a = 'x'", "while 0:", "    a = 'y'"),
    "a branch without effect": body("if len(a) > 2:", "    n = 1", "else:", "    pass"),
    "a branch always taken": "def f(a):\n    if True:\n        b = a[::-1]\n        return b + a\n    return 0",
    "after the return": BASE + "\n    a = 'x'\n    return a",
    "a name given to itself": body("a = a"),
    "an annotation with a value": body("n: int = 3"),
}
ALIVE = {
    "a list is changed": body("a.pop()"),
    "a list is changed under another name": body("x = a", "x += [1]"),
    "one of its lists is changed": body("x = max(a)", "x += [1]"),
    "an iterator moves on": body("x = next(a)"),
    "a name is bound anew and read": body("a = a[1:]"),
    "a loop may leave before": body("b = 1", "for i in a:", "    break"),
    "it may not end": body("while True:", "    pass"),
    "an attribute": body("a.x = 1"),
    "a method of its own": "class A:\n    def get(self):\n        self.n = 1\ndef f(a):\n    a.get()\n    return a.n",
    "what a class binds": "def f(a):\n    y = a + a\n\n    class K:\n        x = y\n    return K().x",
    "a name of outside": "n = 0\ndef f(a):\n    global n\n    n = 1\n    return g(a)\ndef g(a):\n    return [n, a]",
    "it may raise": body("assert a"),
}


@pytest.mark.parametrize("program", DEAD.values(), ids=DEAD)
def test_a_dead_statement_hides_no_program(program: str) -> None:
    assert key(program) == key(BASE)
    assert HeldOutPrograms([BASE])(program)


@pytest.mark.parametrize("program", [BASE, *DEAD.values(), *ALIVE.values()])
def test_without_dead_code_to_remove_both_keys_are_the_same(program: str) -> None:
    bare, whole = Definitions(program), Definitions(program, keeps_dead_code=True)
    assert bare.had_dead_code == (without_dead_code(program) != ast.unparse(ast.parse(program)))
    assert bare.had_dead_code or list(bare.entry_keys()) == list(whole.entry_keys())


@pytest.mark.parametrize("program", ALIVE.values(), ids=ALIVE)
def test_what_has_an_effect_stays(program: str) -> None:
    assert without_dead_code(program) == ast.unparse(ast.parse(program))


@pytest.mark.parametrize("program", [*DEAD.values(), *(ALIVE[name] for name in ("a name is bound anew and read",))])
@pytest.mark.parametrize("value", ["uvw", "", "u"])
def test_what_is_left_gives_the_same_value(program: str, value: str) -> None:
    def result(text: str) -> object:
        scope: dict[str, object] = {}
        exec(text, scope)  # noqa: S102  programs of this file
        return scope["f"](value)  # type: ignore[operator]

    assert result(without_dead_code(program)) == result(program)


def test_a_long_chain_of_dead_statements_takes_no_longer_than_its_length() -> None:
    """Found one by one, 6,000 of them would take minutes: each pass reads the whole tree."""
    chain = ["n0 = 0", *(f"n{number} = n{number - 1}" for number in range(1, 6000))]
    assert key(body(*chain)) == key(BASE)
