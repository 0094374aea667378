"""Isolation: no program of a suite whose data is available can enter a buffer, in any disguise."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model, Profile, Validation
from profiles.task_kinds import NAMES
from tests.workers.suites.samples import CRUXEVAL_ROWS, DATA, PROGRAMS, needs_data, write_data
from workers.data.tasks import read_tasks
from workers.pocket.evaluation import held_out_problems
from workers.sandbox import Sandbox
from workers.suites.data_files import VARIABLE
from workers.suites.held_out import HeldOutPrograms, held_out_of
from workers.tasks.programs import with_entry
from workers.tasks.prompts.style import Proposal
from workers.tasks.seeds import seed_entries
from workers.tasks.validate_proposals import Candidate, Rules, check

OWN = "def f(a):\n    return a * 3"


def registry(data: Path | None, *suites: str, style: str = "azr") -> HeldOutPrograms:
    validation = Validation(suites=suites or ("pocket",), data=str(data or ""), examples_per_task=3)  # type: ignore[arg-type]
    return held_out_of(Profile(name="t", model=Model(prompt_style=style), validation=validation))  # type: ignore[arg-type]


Registry = tuple[list[str], HeldOutPrograms]


@pytest.fixture(scope="module")
def cruxeval() -> Registry:
    """All published programs, and the registry of them."""
    rows = (Path(DATA) / "cruxeval.jsonl").read_text().splitlines()
    published = [json.loads(row)["code"] for row in rows]
    return published, HeldOutPrograms(published)


@pytest.fixture(autouse=True)
def no_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1) as one:
        yield one


@pytest.mark.parametrize("style", ["azr", "pocket"])
def test_every_program_of_every_suite_at_hand_is_held_out(style: str, tmp_path: Path) -> None:
    """Also of suites that the profile does not name: they may be evaluated later."""
    is_held_out = registry(write_data(tmp_path), style=style)
    assert all(is_held_out(program) for program in PROGRAMS)
    assert all(is_held_out(problem.item.program) for problem in held_out_problems(300)[::60])
    assert style == "pocket" or not is_held_out(OWN)


class _Renamed(ast.NodeTransformer):
    """Another name for every parameter and variable."""

    def __init__(self, tree: ast.Module) -> None:
        stores = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        self.bound = stores | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(f"other_{node.id}" if node.id in self.bound else node.id, node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(f"other_{node.arg}")

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.Global([f"other_{name}" for name in node.names])


def variables(program: str) -> list[str]:
    """Parameters and local variables."""
    tree = ast.parse(program)
    inner = [node for top in tree.body if isinstance(top, ast.FunctionDef) for node in ast.walk(top)]
    names = {node.arg for node in inner if isinstance(node, ast.arg)}
    names |= {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(names - {name for node in inner if isinstance(node, ast.Global) for name in node.names})


def changed(program: str, change: type[ast.NodeTransformer]) -> str:
    tree = ast.parse(program)
    made = change(tree) if change is _Renamed else change()  # type: ignore[call-arg]
    return ast.unparse(ast.fix_missing_locations(made.visit(tree)))


class _Annotated(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = ast.Name("object", ast.Load())
        for one in node.args.args:
            one.annotation = ast.Name("object", ast.Load())
        return self.generic_visit(node)


class _Idle(ast.NodeTransformer):
    """Statements that do nothing at the beginning of every function."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        dead = "unread = 0\nunread += 1\nif False:\n    unread = 2"
        node.body[:0] = ast.parse(f"import math\npass\nassert True\n0\nnote: int\n{dead}").body
        return self.generic_visit(node)


def within(program: str) -> str:
    """The published function as an inner function of another."""
    tree = ast.parse(with_entry(program, "solve"))
    inner = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    rest = [node for node in tree.body if node not in inner]
    outer = f"def f(*given):\n{indent(ast.unparse(ast.Module(inner, [])), '    ')}\n    return solve(*given)"
    return f"{ast.unparse(ast.Module(rest, []))}\n{outer}"


DRESSES: dict[str, Callable[[str], str]] = {
    "comments and spaces": lambda text: f"# mine\n\n{text}  # mine\n",
    "a docstring of the module": lambda text: f'"""Mine."""\n{text}',
    "annotations": lambda text: changed(text, _Annotated),
    "another import": lambda text: f"import math\n{text}",
    "an import of names": lambda text: f"from typing import List, Optional\n{text}",
    "a constant below": lambda text: f"{text}\nx = 1",
    "a constant above": lambda text: f"MAGIC = 7\n{text}",
    "an assert below": lambda text: f"{text}\nassert True",
    "a call below": lambda text: f"{text}\nprint(len('x'))",
    "constants named as its variables": lambda text: "\n".join(
        [text, "x = 0", *(f"{name} = 1" for name in variables(text))]
    ),
    "built-ins as themselves": lambda text: f"len = len\nsorted = sorted\n{text}\nstr = str",
    "built-ins under other names": lambda text: f"_len = len\n{text.replace('len(', '_len(')}",
    "built-ins bound in a branch that is not taken": lambda text: f"{text}\nif 0 > 1:\n    len = str = sorted = 0",
    "an unused helper": lambda text: f"def helper(a):\n    return a + 1\n{text}",
    "statements that do nothing": lambda text: changed(text, _Idle),
    "a decorator": lambda text: "from functools import cache\n" + text.replace("def f(", "@cache\ndef f(", 1),
    "renamed variables": lambda text: changed(text, _Renamed),
    "a wrapper": lambda text: f"{with_entry(text, 'solve')}\ndef f(*given):\n    return solve(*given)",
    "a wrapper that does more": lambda text: f"def f(a, *b):\n    return [solve(a, *b)]\n{with_entry(text, 'solve')}",
    "an outer function": within,
    "a branch": lambda text: f"if True:\n{indent(with_entry(text, 'solve'), '    ')}\ndef f(*a):\n    return solve(*a)",
    "a mix": lambda text: f"import re\n{changed(changed(text, _Renamed), _Idle)}\nassert f\ndef g(b):\n    return b",
}


@needs_data
@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
def test_dress_hides_no_program_of_cruxeval(dress: Callable[[str], str], cruxeval: Registry) -> None:
    published, is_held_out = cruxeval
    dressed = [dress(text) for text in published]
    assert len(set(dressed) - set(published)) == len(published) == 800
    assert [text for text in dressed if not is_held_out(text)] == []


@pytest.mark.parametrize(
    "dressed",
    [
        pytest.param("def f(a):\n\n    return (a*2)  # mine", id="comments, spaces, brackets"),
        pytest.param('def f(a):\n    """Doubles."""\n    return a * 2', id="a docstring"),
        pytest.param("def f(a: int) -> int:\n    return a * 2", id="annotations"),
        pytest.param("class A:\n    def g(b):\n        return b * 2\ndef f(a):\n    return A.g(a)", id="a method"),
    ],
)
def test_dress_hides_nothing(dressed: str, tmp_path: Path) -> None:
    assert registry(write_data(tmp_path))(dressed)


HELPED = "def g(a):\n    return a[::-1]\ndef f(a):\n    return g(a) + LAST\nLAST = 'x'"
OTHERS = {
    "the operands change places": ("def f(a, b):\n    return a - b", "def f(a, b):\n    return b - a"),
    "another constant": ("def f(a):\n    return a + 1", "def f(a):\n    return a + True"),
    "another method": ("def f(a):\n    return a.upper()", "def f(a):\n    return a.lower()"),
    "another built-in": ("def f(a):\n    return max(a)", "def f(a):\n    return min(a)"),
    "a loop over another variable": (
        "def f(a, b):\n    return [x for x in a for y in b]", "def f(a, b):\n    return [y for x in a for y in b]",
    ),
    "one more parameter": ("def f(a):\n    return 1", "def f(a, *, b):\n    return 1"),
    "a shared helper": (HELPED, HELPED.replace("g(a) + LAST", "LAST + g(a)")),
    "a shared helper alone": (HELPED, "def f(a):\n    return g(a)\ndef g(a):\n    return a[::-1]"),
    "another constant that it reaches": (HELPED, HELPED.replace("'x'", "'y'")),
    "a global variable": ("def f(a):\n    b = a\n    return b", "b = 2\ndef f(a):\n    c = a\n    return b"),
}  # fmt: skip


@pytest.mark.parametrize(("held_out", "other"), OTHERS.values(), ids=OTHERS)
def test_a_program_that_is_another_is_not_refused(held_out: str, other: str) -> None:
    is_held_out = HeldOutPrograms([held_out])
    assert is_held_out(held_out) and not is_held_out(other)


def test_helpers_in_another_order_and_under_other_names_hide_nothing() -> None:
    moved = "C = 'x'\ndef f(z):\n    return turned(z) + C\ndef turned(t):\n    return t[::-1]"
    assert HeldOutPrograms([HELPED])(moved)


@needs_data
def test_nothing_of_cruxeval_is_refused_but_what_is_there_twice(cruxeval: Registry) -> None:
    """One half asked of the other: a few published programs are others under other names."""
    published, _ = cruxeval
    is_held_out = HeldOutPrograms(published[:400])
    assert sum(map(is_held_out, published[400:])) <= 7


@pytest.mark.parametrize("text", ["def f(a", "(" * 5000, "def f(a):\n return " + "-" * 50_000 + "1", "a\x00"])
def test_what_is_no_program_raises(text: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        HeldOutPrograms([OWN])(text)


def test_thousands_of_functions_that_call_one_another_are_looked_at_once_each() -> None:
    """No closure grows beyond the largest held-out program: a hostile text costs little."""
    chain = "\n".join(f"def f{number}(a):\n    return f{number + 1}(a)" for number in range(1500))
    assert not HeldOutPrograms([HELPED])(f"{chain}\ndef f(a):\n    return f0(a)")


def test_a_proposal_of_a_held_out_program_never_becomes_a_task(tmp_path: Path, sandbox: Sandbox) -> None:
    is_held_out = registry(write_data(tmp_path))
    proposals = [*((code, given) for code, given, _ in CRUXEVAL_ROWS[:3]), (OWN, "3")]
    candidates = [Candidate("ded", Proposal(code, (given,))) for code, given in proposals]
    known = {task: frozenset[str]() for task in NAMES}
    found = check(candidates, sandbox, known, step=1, rules=Rules(is_held_out=is_held_out))
    assert [one.reason for one in found] == ["held_out"] * 3 + [""]
    assert [one.entry is None for one in found] == [True] * 3 + [False]


def test_a_file_of_tasks_with_a_held_out_program_is_refused(tmp_path: Path, sandbox: Sandbox) -> None:
    lines = [{"task": "ded", "program": program, "inputs": ["3"]} for program in (OWN, PROGRAMS[0])]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(LonghaulError, match="line 2: the program belongs to a held-out suite") as caught:
        read_tasks(tmp_path / "tasks.jsonl", sandbox, NAMES, Rules(is_held_out=registry(write_data(tmp_path))))
    assert caught.value.exit_code == ExitCode.INPUT


def test_the_seeds_are_not_held_out(tmp_path: Path) -> None:
    is_held_out = registry(write_data(tmp_path))
    assert not any(is_held_out(entry.program) for entry in seed_entries(NAMES, "azr"))


def test_a_run_whose_suite_has_no_data_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match="is missing") as caught:
        registry(tmp_path, "cruxeval-i")
    assert caught.value.exit_code == ExitCode.INPUT
    registry(tmp_path, "pocket")
