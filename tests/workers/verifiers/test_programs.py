"""Programs with tests: who passes, what a verdict says, and what is no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from profiles.schema import Sandbox as SandboxKnobs
from workers.sandbox import Case, Limits, Result, Sandbox, Script, ScriptResult, Statements, Status
from workers.sandbox.inside.modules import PURE, SCRIPT
from workers.tasks.prompts.response import last_program
from workers.verifiers.programs import Graded, Limit, importable, is_same, judge_programs, sandbox_for, with_function
from workers.verifiers.unit_tests import Call, Pair, Tests

LIMIT = Limit(seconds=0.3, memory_mb=128)
ADDS = "def add(a, b):\n    return a + b"
ASSERTS: Tests = ("assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'", "assert add(2, 2) == 4")
CALLS: Tests = (Call("add", "1, 2", "3"), Call("add", "[1], [2]", "[1, 2]"))
PAIRS: Tests = (Pair("1 2\n", "3\n"), Pair("4 5\n", "9"))
READS = "print(sum(map(int, input().split())))"
STRANGE = "def add(a, b):\n    if a == 2:\n        {}\n    return a + b"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with sandbox_for(SandboxKnobs(allow_weak=True), LIMIT) as one:
        yield one


def test_many_programs_are_judged_at_once_each_by_its_own_tests(sandbox: Sandbox) -> None:
    asked: list[tuple[str | None, Tests]] = [
        (ADDS, ASSERTS),
        (ADDS.replace("+", "-"), ASSERTS),
        (ADDS, CALLS),
        (READS, PAIRS),
        ("print(3)", PAIRS),
        (None, PAIRS),
        (ADDS, ASSERTS),
    ]
    found = judge_programs(sandbox, asked, LIMIT, needs_all=False)
    assert [(one.num_passed, one.num_tests) for one in found] == [
        (3, 3),
        (0, 3),
        (2, 2),
        (2, 2),
        (1, 2),
        (0, 2),
        (3, 3),
    ]
    assert [one.share for one in found[4:6]] == [0.5, 0.0]
    assert [one.is_right for one in found] == [True, False, True, True, False, False, True]
    assert not any(one.is_lost for one in found)


@pytest.mark.parametrize(
    ("program", "tests", "reason"),
    [
        pytest.param(None, ASSERTS, "no fenced block with a program", id="no program"),
        pytest.param("def add(a", ASSERTS, "test 1 of 3: rejected: syntax error", id="a syntax error"),
        pytest.param(ADDS, ("assert add(1, 2) == 4",), "test 1 of 1: AssertionError", id="an assert"),
        pytest.param(ADDS, (Call("add", "1, 2", "4"),), "test 1 of 1: add(1, 2) returned 3", id="another value"),
        pytest.param("def sub(): 1", CALLS, "the program defines no function 'add'", id="another name"),
        pytest.param("def add(a, b): return range(b)", CALLS, "not_literal", id="a value that no literal has"),
        pytest.param("print(4)", PAIRS, "test 1 of 2: printed '4'", id="another output"),
        pytest.param("print(1/0)", PAIRS, "test 1 of 2: ZeroDivisionError: division by zero", id="an exception"),
        pytest.param("import sys; print(3); sys.exit(2)", PAIRS, "test 1 of 2: error", id="an exit code"),
        pytest.param("raise SystemExit", ASSERTS, "test 1 of 3: SystemExit", id="the end before the statement"),
        pytest.param("x = [0] * 10**9", PAIRS, "more than 128 MiB of memory", id="memory of a script"),
        pytest.param("x = [0] * 10**9", ASSERTS, "more than 128 MiB of memory", id="memory of a statement"),
        pytest.param("while True: pass", ASSERTS, "test 1 of 3: more than 0.3 s of CPU", id="time"),
    ],
)
def test_a_failed_program_is_told_why(sandbox: Sandbox, program: str | None, tests: Tests, reason: str) -> None:
    (found,) = judge_programs(sandbox, [(program, tests)], LIMIT)
    assert not found.is_right and not found.is_lost
    assert reason in found.reason


@pytest.mark.parametrize("tests", [ASSERTS, PAIRS, CALLS], ids=["statements", "scripts", "calls"])
def test_the_verdict_on_a_forbidden_import_names_the_modules_that_programs_may_use(
    sandbox: Sandbox, tests: Tests
) -> None:
    (found,) = judge_programs(sandbox, [("import numpy", tests)], LIMIT)
    assert "ImportError: module 'numpy' is not available to programs (they may import abc, " in found.reason
    assert "collections, " in found.reason and "_strptime" not in found.reason


def test_what_may_be_imported_is_the_sandbox_s_own_list() -> None:
    named = importable(Limits(scripts=True, modules=("mine",))).split(", ")
    assert {*named} == {*PURE, *SCRIPT, "mine"} - {"__future__", "_strptime"}


@pytest.mark.parametrize("end", ["while True: pass", "import os; os._exit(0)"], ids=["endless", "gone"])
@pytest.mark.parametrize("needs_all", [True, False])
def test_a_test_that_ends_its_process_costs_no_other_test_its_verdict(
    sandbox: Sandbox, end: str, needs_all: bool
) -> None:
    tests = tuple(Call("add", f"{a}, 1", str(a + 1)) for a in range(12))
    (found,) = judge_programs(sandbox, [(STRANGE.format(end), tests)], LIMIT, needs_all=needs_all)
    assert found.reason.startswith("test 3 of 12: ")
    assert found.num_passed == (2 if needs_all else 11)


def test_a_program_that_never_ends_is_not_given_its_time_for_every_test(sandbox: Sandbox) -> None:
    tests = tuple(Pair("", str(number)) for number in range(500))
    (found,) = judge_programs(sandbox, [("while True: pass", tests)], LIMIT, needs_all=False)
    assert (found.num_passed, found.num_tests, found.is_lost) == (0, 500, False)


class Failing:
    """A real sandbox whose first `times` results are changed, as a machine does that stops."""

    def __init__(self, sandbox: Sandbox, times: int, **changes: Any) -> None:
        self._sandbox, self._times, self._changes = sandbox, times, changes
        self.limits = sandbox.limits

    def run_many(
        self, cases: Sequence[Case | Statements], scripts: Sequence[Script] = ()
    ) -> tuple[list[list[Result]], list[ScriptResult]]:
        calls, whole = self._sandbox.run_many(cases, scripts)
        self._times -= 1
        if self._times < 0:
            return calls, whole
        killed = {"status": Status.KILLED, **self._changes}
        return [[replace(one, **killed) for one in lot] for lot in calls], [replace(one, **killed) for one in whole]


@pytest.mark.parametrize("changes", [{"is_lost": True}, {"from_wall": True}], ids=["lost", "by the wall clock"])
@pytest.mark.parametrize(("program", "tests"), [(ADDS, ASSERTS), (READS, PAIRS)], ids=["statements", "scripts"])
@pytest.mark.parametrize("needs_all", [True, False])
def test_a_verdict_of_the_machine_is_none_and_is_tried_again(
    sandbox: Sandbox, program: str, tests: Tests, changes: Any, needs_all: bool
) -> None:
    judged = {}
    for times in (1, 2):
        failing: Any = Failing(sandbox, times, **changes)
        (judged[times],) = judge_programs(failing, [(program, tests)], LIMIT, needs_all=needs_all)
    assert judged[1].is_right
    assert judged[2].is_lost and not judged[2].is_right
    assert judged[2].reason.startswith("no verdict: test 1 of ")


def test_a_real_failure_decides_although_another_test_was_lost(sandbox: Sandbox) -> None:
    wrong = (*ASSERTS[:2], "assert False")
    once: Any = Failing(sandbox, 1, is_lost=True)
    (found,) = judge_programs(once, [(ADDS, wrong)], LIMIT)
    assert not found.is_lost and found.reason == "test 3 of 3: AssertionError"


def test_a_program_without_tests_cannot_be_judged(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="without tests"):
        judge_programs(sandbox, [(ADDS, ())], LIMIT)
    assert Graded(0, 0).share == 0.0 and not Graded(0, 0).is_right


def test_a_published_class_and_names_without_an_import_are_enough_for_calls(sandbox: Sandbox) -> None:
    solution = "class Solution:\n    def add(self, a: List[int], b: int) -> int:\n        return deque([*a, b])[0]"
    found = judge_programs(sandbox, [(solution, (Call("add", "[7], 1", "7"),))], LIMIT)
    assert found[0].is_right
    assert with_function(ADDS, "add") == ADDS


@pytest.mark.parametrize(
    ("returned", "expected", "is_equal"),
    [
        ("(1, 2)", "[1, 2]", True),
        ("{'a': (1,)}", "{'a': [1]}", True),
        ("1", "1.0", True),
        ("True", "1", True),
        ("[1, 2]", "[2, 1]", False),
        ("'1'", "1", False),
        ("", "1", False),
    ],
)
def test_values_are_equal_as_json_has_them(returned: str, expected: str, is_equal: bool) -> None:
    assert is_same(returned, expected) == is_equal


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\nthen\n```python\nb\n```", "b"),
        ("```python\nb\n```\nIt prints\n```text\n3\n```", "b"),
        ("```\nb\n```", "b"),
        ("<think>```python\na\n```</think>```python\nb\n```", "b"),
        ("<think>```python\na\n```", None),
        ("```python\nb", None),
        ("```python\n\n```", None),
        ("b", None),
    ],
)
def test_the_last_closed_fence_after_the_thoughts_is_the_program(text: str, program: str | None) -> None:
    assert last_program(text) == program


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import os; os.kill(os.getppid(), 9)", id="kills its parent"),
        pytest.param("class A:\n    __eq__ = lambda *_: 1/0\ndef add(a, b): return A()", id="a value that raises"),
        pytest.param("import builtins; builtins.exec = lambda *_: None", id="replaces exec"),
        pytest.param("import sys; sys.setrecursionlimit(10**9)\ndef add(a, b): return add(a, b)", id="recursion"),
        pytest.param("open('/etc/passwd').read()", id="reads a file"),
    ],
)
@pytest.mark.parametrize("tests", [ASSERTS, PAIRS, CALLS], ids=["statements", "scripts", "calls"])
def test_a_hostile_program_passes_nothing_and_harms_no_other(sandbox: Sandbox, program: str, tests: Tests) -> None:
    hostile, good = judge_programs(sandbox, [(program, tests), (ADDS, ASSERTS)], LIMIT, needs_all=False)
    assert hostile.num_passed == 0 and good.is_right
