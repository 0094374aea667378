"""Tests of published data sets: each form as its authors publish it, into one."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import LonghaulError
from profiles.schema import Grpo
from workers.problems.reader import read_problems
from workers.problems.test_rows import prompt_of, unit_tests_of
from workers.verifiers.unit_tests import BadTests, Call, Pair, for_code_server, read_tests, text_of


def packed(value: Any) -> str:
    """As open-instruct and LiveCodeBench pack their tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/unpickled",)


STATEMENTS = ("assert f(1) == 2", "assert f(2) == 3")
LIVE_STDIN = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
LIVE_CALL = [{"input": "[1, 2]\n3", "output": "[3]", "testtype": "functional"}]
FUNCTION = json.dumps({"func_name": "g"})
HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "    return x",
    "test": "def check(candidate):\n    assert candidate(1) == 1\n",
}
MBPP = {"text": "Write f.", "task_id": 601, "test_list": list(STATEMENTS), "challenge_test_list": ["assert f(0) == 1"]}
OWN_CALL = {"call": "f", "input": "1, k=[2]", "output": "(3,)"}
APPS_LINES = {"inputs": [["1", "2"]], "outputs": [["3"]]}
OTHERS = {"question": "Eggs?", "answer": "18", "test": "x", "ground_truth": "18"}


@pytest.mark.parametrize(
    ("row", "tests"),
    [
        pytest.param({"tests": list(STATEMENTS)}, STATEMENTS, id="a list of statements"),
        pytest.param({"tests": json.dumps(STATEMENTS)}, STATEMENTS, id="its text"),
        pytest.param({"tests": packed(list(STATEMENTS))}, STATEMENTS, id="packed by open-instruct"),
        pytest.param({"tests": [{"input": ["1", "2"], "output": "3"}]}, (Pair("1\n2", "3"),), id="lines of input"),
        pytest.param({"tests": [OWN_CALL]}, (Call("f", "1, k=[2]", "(3,)"),), id="calls"),
        pytest.param(
            {"dataset": ["code"], "ground_truth": list(STATEMENTS), "messages": []}, STATEMENTS, id="open-instruct"
        ),
        pytest.param(
            {"dataset": "code_stdio", "ground_truth": [json.dumps([{"input": "1", "output": "2"}])]},
            (Pair("1", "2"),),
            id="open-instruct, stdio",
        ),
        pytest.param(
            {"input_output": json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["2\n", "3\n"]})},
            (Pair("1\n", "2\n"), Pair("2\n", "3\n")),
            id="APPS, input and output",
        ),
        pytest.param({"input_output": APPS_LINES}, (Pair("1\n2", "3"),), id="APPS, lists of lines"),
        pytest.param(
            {"input_output": {"inputs": [[[1, 2], "x"]], "outputs": [[True]], "fn_name": "f"}},
            (Call("f", "[1, 2], 'x'", "True", "[True]"),),
            id="APPS, a function",
        ),
        pytest.param(
            {"input_output": {"inputs": [[{"1": 2}]], "outputs": [{"-3": "a", "b": 1}], "fn_name": "f"}},
            (Call("f", "{1: 2}", "{'-3': 'a', 'b': 1}"),),
            id="TACO, numbers as keys",
        ),
        pytest.param({"public_test_cases": json.dumps(LIVE_STDIN)}, (Pair("1\n", "2\n"),), id="LiveCodeBench"),
        pytest.param(
            {
                "public_test_cases": json.dumps(LIVE_CALL),
                "private_test_cases": packed(json.dumps(LIVE_CALL)),
                "metadata": FUNCTION,
            },
            (Call("g", "[1, 2], 3", "[3]"),) * 2,
            id="LiveCodeBench, functions, private ones packed",
        ),
        pytest.param(HUMAN_EVAL, (f"{HUMAN_EVAL['test']}\ncheck(f)",), id="HumanEval"),
        pytest.param(MBPP, (*STATEMENTS, "assert f(0) == 1"), id="MBPP"),
        pytest.param(
            {"prompt": "Write f.", "test_imports": ["import math"], "test_list": ["assert f(1)"]},
            ("import math\nassert f(1)",),
            id="MBPP, sanitized",
        ),
        pytest.param(
            {"text": "Write f.", "test_setup_code": "a = 1", "test_list": ["assert f(a)"]},
            ("a = 1\nassert f(a)",),
            id="MBPP, with set-up",
        ),
        pytest.param({"question": "Eggs?", "answer": "18"}, None, id="an answer in place of tests"),
        pytest.param(OTHERS, None, id="other columns of these names"),
        pytest.param({"input_output": "", "tests": None}, None, id="a row without any"),
    ],
)
def test_each_published_form_is_read(row: dict[str, Any], tests: Any) -> None:
    found = unit_tests_of(row)
    assert found == tests
    if found is not None:
        assert read_tests(text_of(found)) == found


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tests": "no list"}, "tests: tests are neither JSON nor base64"),
        ({"tests": {"a": 1}}, "tests: tests must be a list"),
        ({"tests": packed(Evil())}, "tests: tests cannot be read: a pickle with"),
        ({"tests": ["assert 1", " "]}, "tests: test 2 is empty"),
        ({"tests": ["assert 1", {"input": "", "output": ""}]}, "tests: test 2 is of another kind than test 1"),
        ({"tests": [{"call": "f", "input": "g()", "output": "1"}]}, "tests: test 1 has an input or output that is not"),
        ({"tests": [{"call": "f(", "input": "1", "output": "1"}]}, "test 1 calls 'f('"),
        ({"tests": [{"call": "f", "input": "1"}]}, "test 1 must have the texts call, input and output"),
        ({"input_output": "{"}, "input_output: is not JSON"),
        ({"input_output": "[]"}, "input_output: is not an object with inputs and outputs"),
        ({"input_output": {"inputs": ["1"], "outputs": []}}, "input_output: has no lists inputs and outputs of one"),
        ({"input_output": {"inputs": [], "outputs": []}}, "input_output: there are no tests"),
        ({"input_output": {"inputs": [1], "outputs": [1], "fn_name": 5}}, "fn_name is 5, not a text"),
        ({"public_test_cases": "[]"}, "public_test_cases: there are no tests"),
        ({"public_test_cases": json.dumps(LIVE_CALL)}, "test 1 calls a function, but metadata has no func_name"),
        ({"public_test_cases": '[{"input": 1}]'}, "test 1 has no texts input and output"),
        (
            {"public_test_cases": json.dumps([{**LIVE_CALL[0], "input": "x"}]), "metadata": FUNCTION},
            "test 1 has an input or output that is not JSON",
        ),
        ({"private_test_cases": packed(Evil()), "metadata": FUNCTION}, "private_test_cases: tests cannot be read"),
        ({**HUMAN_EVAL, "entry_point": "f("}, "test: is not a text beside the name entry_point"),
        ({**MBPP, "test_list": "assert 1"}, "test_list: is not a list of statements"),
    ],
)
def test_tests_that_cannot_be_run_are_told_with_column_and_number(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadTests) as caught:
        unit_tests_of(row)
    assert reason in str(caught.value)
    assert not Path("/tmp/unpickled").exists()


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        (HUMAN_EVAL, "def f(x):\n"),
        (MBPP, "Write f.\nThe program must pass these tests:\n\n```python\nassert f(1) == 2\nassert f(2) == 3\n```"),
        ({"question": "Sum?", "starter_code": ""}, "Sum?"),
        (
            {"question_content": "Sum?", "starter_code": "class Solution:"},
            "Sum?\n\nBegin with this code:\n\n```python\nclass Solution:\n```",
        ),
        ({"code": "..."}, None),
    ],
)
def test_the_prompt_is_the_row_s_own_with_the_names_that_tests_call(row: dict[str, Any], prompt: str | None) -> None:
    assert prompt_of(row) == prompt


def test_a_file_of_published_rows_is_read_and_bad_tests_are_named_by_line(tmp_path: Path) -> None:
    rows = [HUMAN_EVAL, MBPP, {"question": "Sum?", "input_output": json.dumps({"inputs": ["1"], "outputs": ["1"]})}]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_problems(path, Grpo(), with_tests=True).problems
    assert [(one.has_tests, len(read_tests(one.gold))) for one in found] == [(True, 1), (True, 3), (True, 1)]
    path.write_text("\n".join(map(json.dumps, [*rows, {"question": "?", "input_output": "{"}])))
    with pytest.raises(LonghaulError, match="line 4: tests that cannot be run: input_output: is not JSON"):
        read_problems(path, Grpo(), with_tests=True)


def test_the_code_server_gets_calls_as_statements() -> None:
    calls = (Call("f", "1", "2"), Call("f", "", "3", "[3]"))
    assert for_code_server(calls) == ["assert f(1) in (2, 2)", "assert f() in (3, [3])"]
    assert for_code_server((Pair("1", "2"),)) == [{"input": "1", "output": "2"}]
