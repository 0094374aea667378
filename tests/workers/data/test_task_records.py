"""Lines of files as tasks: this project's form, the original's, and what is neither."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.data.given import ADD, TWICE, line, problem, triplet
from workers.data.record import BadLine, Record, encode, key_of, parse_line, to_original
from workers.sandbox import Case, Limits, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=0.5, allow_weak=True), jobs=1) as one:
        yield one


def parsed(text: str) -> list[Record]:
    return parse_line(text.encode())


def test_a_line_of_this_project_is_one_task_and_its_keys_are_not_believed() -> None:
    (record,) = parsed(line(key="forged", program_key="forged", message="m", solve_rate=0.5))
    assert (record.task, record.program, record.inputs, record.outputs) == ("ded", ADD, ("1",), ())
    assert (record.message, record.solve_rate) == ("m", 0.5)
    assert (record.key, record.program_key, record.source) == ("", "", "import")


def test_a_triplet_of_the_original_is_a_deduction_and_an_abduction() -> None:
    both = parsed(triplet())
    assert [(one.task, one.inputs, one.outputs) for one in both] == [("abd", ("1",), ("2",)), ("ded", ("1",), ("2",))]


def test_a_problem_of_the_original_is_an_induction() -> None:
    row = {"snippet": ADD, "inputs": ["1", "2"], "outputs": ["2", "3"], "message": "add", "imports": []}
    (record,) = parsed(json.dumps(row))
    assert (record.task, record.inputs, record.message) == ("ind", ("1", "2"), "add")


def test_imports_that_the_original_keeps_apart_come_back_into_the_program_once() -> None:
    (record, _) = parsed(triplet("def f(a):\n    return math.floor(a)", imports=["import math", "import math"]))
    assert record.program == "import math\ndef f(a):\n    return math.floor(a)"
    (record, _) = parsed(triplet("import math\ndef f(a):\n    return math.floor(a)", imports=["import math"]))
    assert record.program.count("import math") == 1


def test_a_composite_of_the_original_brings_the_programs_that_it_calls() -> None:
    (record, _) = parsed(triplet("def f(a):\n    return g_0(a) + 1", composite_functions=[{"snippet": TWICE}]))
    assert "def g_0(a):\n    return a * 2" in record.program


CALLS_TWO = "def f(a):\n    return g_0(a) + g_1(a)"
PARTS: dict[str, tuple[str, list[Any], int]] = {
    "named by their places": (CALLS_TWO, ["def g_0(a):\n    return a * 2", "def g_1(a):\n    return a + 1"], 10),
    "named in another order": (CALLS_TWO, ["def g_1(a):\n    return a + 1", "def g_0(a):\n    return a * 2"], 10),
    "one named, one not": (CALLS_TWO, ["def g_0(a):\n    return a * 2", "def f(a):\n    return a + 1"], 10),
    "both named alike": (CALLS_TWO, ["def g_0(a):\n    return a * 2", "def g_0(a):\n    return a + 1"], 10),
    "named by a place that it had before": ("def f(a):\n    return g_0(a)", ["def g_2(a):\n    return a * 2"], 6),
    "the second alone": ("def f(a):\n    return g_1(a)", ["def g_1(a):\n    return a * 2"], 6),
    "one that calls itself": (
        "def f(a):\n    return g_0(a)", ["def g_0(a):\n    return a * g_0(a - 1) if a else 1"], 6,
    ),
    "one that calls itself under an old number": (
        "def f(a):\n    return g_0(a)", ["def g_1(a):\n    return a * g_1(a - 1) if a else 1"], 6,
    ),
    "with imports of its own": (
        "def f(a):\n    return g_0(a)",
        [{"snippet": "def g_0(a):\n    return math.gcd(a, 12)", "imports": ["import math"]}], 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("program", "parts", "value"), PARTS.values(), ids=PARTS)
def test_no_part_of_a_composite_is_lost_whatever_it_is_named(
    program: str, parts: list[Any], value: int, sandbox: Sandbox
) -> None:
    """The original renames parts within its list, so that its files hold programs with g_N in place of f."""
    (record, _) = parsed(triplet(program, composite_functions=parts))
    ((result,),) = sandbox.execute_many([Case(record.program, ("3",))])
    assert result.value == str(value), record.program


@pytest.mark.parametrize("name", ["g_01", "g_\u0663", "g_" + "9" * 5000])
def test_a_part_with_a_number_that_is_none_does_not_make_the_reader_fail(name: str) -> None:
    assert parsed(triplet(f"def f(a):\n    return {name}(a)", composite_functions=[f"def {name}(a):\n    return a"]))


def test_an_entry_function_of_another_name_becomes_f() -> None:
    assert parsed(line("def solve(a):\n    return a"))[0].program.startswith("def f(a)")


def test_a_byte_order_mark_is_no_part_of_the_line() -> None:
    assert len(parse_line(b"\xef\xbb\xbf" + line().encode())) == 1


BAD = {
    "half a line": (line()[:-9], "not_json"),
    "binary": ("\x00\x01", "not_json"),
    "a lone surrogate": (line().replace("return", "\\ud800"), "not_json"),
    "a hundred thousand brackets": ("[" * 100_000, "not_json"),
    "no object": ("[1, 2]", "wrong_keys"),
    "another project's object": ('{"prompt": "1 + 1", "answer": "2"}', "wrong_keys"),
    "a kind of task that there is not": (line(task="err"), "wrong_keys"),
    "an unknown key": (line(nonsense=1), "wrong_keys"),
    "a program that is no text": (line().replace(json.dumps(ADD), "5"), "wrong_keys"),
    "more outputs than inputs": (json.dumps({**json.loads(line()), "outputs": ["1", "2"]}), "wrong_keys"),
    "a negative step": (line(step=-1), "wrong_keys"),
    "an original without an input": (json.dumps({"snippet": ADD}), "wrong_keys"),
    "an original problem of one pair": (json.dumps({"snippet": ADD, "inputs": ["1"]}), "wrong_keys"),
    "composites that are no list": (triplet(composite_functions=5), "wrong_keys"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_what_holds_no_task_has_a_reason(text: str, reason: str) -> None:
    with pytest.raises(BadLine) as bad:
        parsed(text)
    assert bad.value.reason == reason and str(bad.value)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | ANY_JSON.map(lambda found: json.dumps(found).encode()))
def test_no_bytes_make_the_reader_fail(content: bytes) -> None:
    try:
        assert parse_line(content)
    except BadLine as bad:
        assert bad.reason in ("not_json", "wrong_keys")


KEYS = ("snippet", "input", "output", "inputs", "outputs", "message", "imports", "composite_functions", "program",
        "task", "step", "origin")  # fmt: skip


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(KEYS), ANY_JSON | st.sampled_from([ADD, TWICE, ["1"], "ded"])))
def test_no_object_makes_the_reader_or_the_key_fail(row: dict[str, Any]) -> None:
    with suppress(BadLine):
        assert all(isinstance(key_of(one), str) for one in parsed(json.dumps(row)))


@pytest.mark.parametrize("text", [line(output="2", origin={"run": "night", "step": 7}), problem(message="m")])
def test_a_record_that_is_written_reads_back_as_it_was(text: str) -> None:
    (record,) = parsed(text)
    assert parse_line(encode(record)) == [record]


def test_the_original_s_form_has_a_triplet_once_and_problems_apart() -> None:
    tasks = [*parsed(triplet("import math\n" + ADD)), *parsed(json.dumps(
        {"task": "ind", "program": ADD, "inputs": ["1", "2"], "outputs": ["2", "3"], "message": "m"}))]  # fmt: skip
    triplets, problems = to_original(tasks)
    assert [(row["input"], row["output"], row["imports"]) for row in triplets] == [("1", "2", ["import math"])]
    assert [(row["inputs"], row["outputs"], row["message"]) for row in problems] == [(["1", "2"], ["2", "3"], "m")]
    again = [one for row in (*triplets, *problems) for one in parsed(json.dumps(row))]
    assert [(one.task, one.program, one.inputs) for one in again] == [
        (one.task, one.program, one.inputs) for one in tasks
    ]


@pytest.mark.parametrize("program", ["def f(a", "(" * 5000, "def f(a):\n return " + "-" * 50_000 + "1", "a\x00"])
def test_what_is_no_program_has_no_key(program: str) -> None:
    assert key_of(Record(task="ded", program=program, inputs=("1",))) == ""
