"""Programs through a real sandbox: statuses, order, batches, determinism."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from workers.sandbox import Budget, Case, Limits, Result, Sandbox, Script, Statements, Status


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=0.5, allow_weak=True)) as box:
        yield box


def brief(result: Result) -> tuple[Status, str | None]:
    return result.status, result.value


@pytest.mark.parametrize(
    ("program", "inputs", "status", "value"),
    [
        ("def f(x): return x + 1", "1", Status.OK, "2"),
        ("def f(numbers): return sum(numbers)", "numbers=[2, 3]", Status.OK, "5"),
        ("def f(x): return None", "1", Status.OK, "None"),
        ("def f(x): return {3, 1, 2}", "1", Status.OK, "{1, 2, 3}"),
        ("def f(x): return float('nan')", "1", Status.OK, "nan"),
        ("def f(x): print('noise'); return x", "b'a'", Status.OK, "b'a'"),
        ("def f(x): return 1 / x", "0", Status.ERROR, None),
        ("def f(x): raise StopIteration", "0", Status.ERROR, None),
        ("def f(x): raise SystemExit", "0", Status.ERROR, None),
        ("def f(x): return f(x)", "0", Status.ERROR, None),
        ("def f(x): return object()", "0", Status.NOT_LITERAL, None),
        ("import os\ndef f(x): return 1", "0", Status.ERROR, None),
        ("def f(x):\n    while True: pass", "0", Status.TIMEOUT, None),
        ("def f(x): return [0] * (1 << 40)", "0", Status.MEMORY, None),
        ("def f(x): return 'a' * 100_000", "0", Status.OUTPUT_TOO_LARGE, None),
        ("def f(x) return 1", "0", Status.REJECTED, None),
        ("def g(x): return 1", "0", Status.REJECTED, None),
        ("f = 1", "0", Status.REJECTED, None),
        ("def f(x): return '\0'", "0", Status.REJECTED, None),
        ("#" * 10_000_000 + "\ndef f(x): return x", "0", Status.REJECTED, None),
        ("def f(x): return x", "g()", Status.REJECTED, None),
    ],
)
def test_each_ending_has_its_status(
    sandbox: Sandbox, program: str, inputs: str, status: Status, value: str | None
) -> None:
    assert brief(sandbox.execute(program, inputs)) == (status, value)


def test_an_error_names_its_type_and_message(sandbox: Sandbox) -> None:
    result = sandbox.execute("class Bad(Exception): pass\ndef f(x): raise Bad('no')", "1")
    assert (result.error_type, result.message) == ("Bad", "no")


def test_another_entry_may_be_named(sandbox: Sandbox) -> None:
    assert sandbox.execute("def solve(x): return x * 2", "2", entry="solve").value == "4"


def test_results_come_in_the_order_of_cases_and_inputs(sandbox: Sandbox) -> None:
    cases = [Case(f"def f(x): return x + {n}", tuple(str(i) for i in range(n % 5))) for n in range(40)]
    values = [[result.value for result in results] for results in sandbox.execute_many(cases)]
    assert values == [[str(i + n) for i in range(n % 5)] for n in range(40)]


def test_a_program_that_dies_loses_only_its_own_remaining_inputs(sandbox: Sandbox) -> None:
    looping = "def f(x):\n    while x == 2: pass\n    return x"
    first, second = sandbox.execute_many([Case(looping, ("1", "2", "3")), Case("def f(x): return x", ("1", "2"))])
    assert [result.status for result in first] == [Status.OK, Status.TIMEOUT, Status.KILLED]
    assert first[2].message.startswith("not run")
    assert [result.value for result in second] == ["1", "2"]


def test_a_call_that_was_late_once_runs_again_and_counts_if_it_is_in_time_then() -> None:
    # As where a virtual machine stands still: its CPU time passes in one run, and not in the next.
    spin = "import time\ndef f(x, until):\n    while x == 2 and time.monotonic() < until: pass\n    return x"
    with Sandbox(Limits(cpu_s=0.5, modules=("time",), allow_weak=True), jobs=1) as box:
        until = time.monotonic() + 0.8
        (results,) = box.execute_many([Case(spin, tuple(f"{x}, {until}" for x in (1, 2, 3)))])
    assert [result.value for result in results] == ["1", "2", "3"]


def test_an_input_that_is_no_literal_leaves_the_others_alone(sandbox: Sandbox) -> None:
    (results,) = sandbox.execute_many([Case("def f(x): return x", ("1", "g()", "3"))])
    assert [brief(result) for result in results] == [
        (Status.OK, "1"),
        (Status.REJECTED, None),
        (Status.OK, "3"),
    ]


def test_each_input_of_a_batch_meets_a_fresh_module(sandbox: Sandbox) -> None:
    counting = "calls = []\ndef f(x):\n    calls.append(x)\n    return len(calls)"
    (results,) = sandbox.execute_many([Case(counting, ("1", "2", "3"))])
    assert [result.value for result in results] == ["1", "1", "1"]


@pytest.mark.parametrize(
    ("program", "status"),
    [
        pytest.param("def f(x): return x * 2", Status.OK, id="plain"),
        pytest.param("def f(x): return {'a', 'b', 'c'}", Status.OK, id="a set has no order"),
        pytest.param("def f(x): return 1 / 0", Status.ERROR, id="the same error each time"),
        pytest.param("def f(x): return list({'a', 'b', 'c', 'd'})", Status.NONDETERMINISTIC, id="V5: hash order"),
        pytest.param(
            "n = 0\ndef f(x):\n    global n\n    n += 1\n    return n", Status.NONDETERMINISTIC, id="V4: call counter"
        ),
        pytest.param("def f(x): return id(f)", Status.NONDETERMINISTIC, id="address"),
        pytest.param("def f(x): return repr(object())", Status.NONDETERMINISTIC, id="address in repr"),
        pytest.param("def f(x): return hash('a')", Status.NONDETERMINISTIC, id="hash"),
        pytest.param(
            "def f(x, seen=[]):\n    seen.append(1)\n    return len(seen)", Status.NONDETERMINISTIC, id="default"
        ),
    ],
)
def test_determinism_is_checked_by_three_calls_in_two_processes(sandbox: Sandbox, program: str, status: Status) -> None:
    assert sandbox.check_deterministic(program, "1").status is status


def test_arguments_are_parsed_afresh_for_each_call(sandbox: Sandbox) -> None:
    program = "def f(x):\n    x.append(1)\n    return len(x)"
    assert brief(sandbox.check_deterministic(program, "[]")) == (Status.OK, "1")


def test_determinism_of_many_cases_comes_in_order(sandbox: Sandbox) -> None:
    cases = [Case("def f(x): return x", ("1", "x", "3")), Case("def f(x): return id(f)", ("1",))]
    answers = [[result.status for result in results] for results in sandbox.check_deterministic_many(cases)]
    assert answers == [[Status.OK, Status.REJECTED, Status.OK], [Status.NONDETERMINISTIC]]


def test_a_closed_sandbox_says_so() -> None:
    box = Sandbox(Limits(allow_weak=True), jobs=1)
    box.close()
    box.close()
    with pytest.raises(RuntimeError, match="closed"):
        box.execute("def f(x): return x", "1")


ADDS = "def f(x): return x + 1"


def test_cases_statements_and_scripts_run_side_by_side_and_come_back_in_order() -> None:
    cases = [
        Case(ADDS, ("1", "2")),
        Statements(
            f"{ADDS}\ncount = 0", ("count += f(1); assert count == 2", "count += 1; assert count == 1", "1 / 0")
        ),
        Case("def f(xs: List[int]): return deque(xs)[0]", ("[4]",), is_ambient=True),
        Case("def f(xs: List[int]): return xs", ("[4]",)),
        Statements("\0", ("f()",)),
    ]
    with Sandbox(Limits(scripts=True, allow_weak=True), jobs=2) as box:
        found, printed = box.run_many(cases, [Script("print(input())", b"hi"), Script("\0")])
    assert [one.value for one in found[0]] == ["2", "3"]
    assert [one.status for one in found[1]] == [Status.OK, Status.OK, Status.ERROR]
    assert [found[at][0].status for at in (2, 3, 4)] == [Status.OK, Status.ERROR, Status.REJECTED]
    assert (printed[0].stdout, printed[1].status) == (b"hi\n", Status.REJECTED)


def test_a_case_may_have_limits_of_its_own(sandbox: Sandbox) -> None:
    slow = "def f(x):\n    while True: pass"
    ((late,), (hungry,)), _ = sandbox.run_many(
        [
            Case(slow, ("1",), budget=Budget(0.1, 5.0)),
            Statements("x = bytearray(200 << 20)", ("x",), Budget(0.5, 5.0, memory_mb=64)),
        ]
    )
    assert late.status is Status.TIMEOUT and late.cpu_s < 0.5
    assert hungry.status is Status.MEMORY


def test_a_sandbox_for_scripts_has_the_same_other_limits(sandbox: Sandbox) -> None:
    with sandbox.with_scripts() as other:
        assert other.limits.cpu_s == sandbox.limits.cpu_s
        assert other.run_scripts([Script("import hashlib; print(hashlib.md5(b'a').hexdigest())")])[0].stdout == (
            b"0cc175b9c0f1b6a831c399e269772661\n"
        )
        assert other.execute("import hashlib\ndef f(x): return hasattr(hashlib, 'scrypt')", "1").value == "False"
