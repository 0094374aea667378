"""Programs as text: what is renamed, stripped and put together, and row B13 of the checklist."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from workers.sandbox import Limits, Sandbox
from workers.tasks import programs
from workers.tasks.prompts.style import Proposal
from workers.tasks.validate_proposals import Candidate, Rules, check


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=1.0, allow_weak=True), jobs=1) as box:
        yield box


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("def f(a): return a", id="it is f already"),
        pytest.param("def g(a): return a\ndef h(a): return g(a)", id="two functions: which one is meant?"),
        pytest.param("def g(f): return f", id="the new name is a parameter"),
        pytest.param("def g(a):\n    def f(): return a\n    return f()", id="the new name is an inner function"),
        pytest.param("def g(a):\n    g = a\n    return g", id="the old name is a variable as well"),
        pytest.param("def g(a): return f(a)", id="the new name is used"),
        pytest.param("from math import sqrt as f\ndef g(a): return f(a)", id="the new name is imported"),
        pytest.param("def g(a) return a", id="no program"),
        pytest.param("def g(a): return " + "-" * 500 + "a", id="nested too deeply"),
    ],
)
def test_a_program_is_left_alone_where_a_new_name_could_mean_something_else(program: str) -> None:
    assert programs.with_entry(program) == program


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("def g(n):  # g(n)\n    return 'g' + g(n - 1)", "def f(n):  # g(n)\n    return 'g' + f(n - 1)"),
        ("def  g(n): return é(g)\nx = g", "def  f(n): return é(f)\nx = f"),
        ("def g(n):\n    s = 'é'; return g(s) + [g, a.g]", "def f(n):\n    s = 'é'; return f(s) + [f, a.g]"),
        ("async def g(n): return g", "async def f(n): return f"),
    ],
)
def test_definition_and_references_are_renamed_and_nothing_else(program: str, expected: str) -> None:
    assert programs.with_entry(program) == expected


def test_references_inside_f_strings_are_renamed_too() -> None:
    found = programs.with_entry("def solve(n):\n    return f'{solve(n - 1)} é {n}' if n else ''")
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse("def f(n):\n    return f'{f(n - 1)} é {n}' if n else ''"))


def test_stripping_leaves_imports_functions_and_classes() -> None:
    program = (
        '"""why"""\nx = 1  # one\nclass A:\n    """A."""\ndef f(a):\n    """F."""\n    return a\nimport math\nf(1)'
    )
    assert programs.stripped(program) == "import math\n\nclass A:\n    pass\n\ndef f(a):\n    return a"
    assert programs.stripped("no program (") == "no program ("


def test_imports_are_collected_once_and_future_ones_first() -> None:
    program = "import math\nfrom re import sub\nimport math\nfrom __future__ import annotations\ndef f(a): return a"
    assert programs.imports_of(program) == [
        "from __future__ import annotations",
        "import math",
        "from re import sub",
    ]


DOUBLE = "import math\ndef f(x):\n    # twice\n    return 2 * x"
SHIFT = "def f(x):\n    return x + 3"


def test_composed_programs_hold_all_they_need_and_leave_their_parts_unchanged() -> None:
    parts = [DOUBLE, SHIFT]
    made = programs.composed("import re\ndef f(x):\n    return g_0(x) * g_1(x)", parts)
    names = [node.name for node in ast.parse(made).body if isinstance(node, ast.FunctionDef)]
    assert names == ["g_0", "g_1", "f"]
    assert programs.imports_of(made) == ["import re", "import math"]
    assert parts == [DOUBLE, SHIFT]
    assert programs.is_composed(made) and not programs.is_composed(DOUBLE)


@pytest.mark.parametrize(
    ("program", "is_able"),
    [
        (DOUBLE, True),
        ("class A: pass\ndef f(x): return A", False),
        ("def f(x): return f(x - 1) if x else 0", True),
        ("def f(x):\n    f = x\n    return f", False),
        ("x = 1\ndef f(a): return a", False),
        ("def g_0(x): return x\ndef f(x): return g_0(x)", False),
    ],
)
def test_only_lone_functions_can_be_built_on(program: str, is_able: bool) -> None:
    assert programs.can_be_part(program) is is_able


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param("def f(x):\n    return g_0(x)", "parts", id="B13 one of two is not called"),
        pytest.param("def f(x):\n    return g_0(x) if g_1(x) else 0", "parts", id="B13 a wrapper of the first"),
        pytest.param("def f(x):\n    g_0(x)\n    return g_1(x)", "parts", id="B13 a wrapper of the second"),
        pytest.param("def g_1(x): return 9\ndef f(x):\n    return g_0(x) + g_1(x)", "parts", id="B13 defined anew"),
        pytest.param("def f(x, g_1=len):\n    return g_0(x) + g_1([x])", "parts", id="B13 bound by a parameter"),
        pytest.param("def f(x):\n    return g_0(x) * g_1(x)", "", id="B13 both are built on"),
    ],
)
def test_a_composite_has_to_build_on_all_its_parts(sandbox: Sandbox, program: str, reason: str) -> None:
    candidate = Candidate("ded", Proposal(program, ("5",)), parts=(DOUBLE, SHIFT))
    (found,) = check([candidate], sandbox, {"ded": set()}, step=1, rules=Rules())
    assert found.reason == reason
    if found.entry is not None:
        assert found.entry.outputs == ("80",)
    assert candidate.parts == (DOUBLE, SHIFT)
