"""The two protocols as data: what is read, what is refused with which reason, what is answered."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from workers.sandbox import ScriptResult, Status
from workers.sandbox.server import protocols
from workers.sandbox.server.protocols import BadRequest, ProgramTests, RunCode

PAIRS = [{"input": "1\n", "output": "2\n"}, {"input": ["a", "b"], "output": "c", "testtype": "stdin"}]


def packed(value: Any) -> str:
    """As open-instruct packs tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


@pytest.mark.parametrize("form", [lambda tests: tests, json.dumps, packed], ids=["list", "JSON", "packed"])
def test_tests_come_in_three_forms(form: Any) -> None:
    assert protocols.pairs_of(form(PAIRS)) == [("1\n", "2\n"), ("a\nb", "c")]
    assert protocols.asserts_of(form(["assert f(1) == 2"])) == ["assert f(1) == 2"]


@pytest.mark.parametrize("tests", [[], "", None, "[]"])
def test_no_tests_are_no_tests(tests: Any) -> None:
    assert protocols.asserts_of(tests) == protocols.pairs_of(tests) == []


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("no JSON, no base64", "neither JSON nor base64"),
        (base64.b64encode(b"not compressed").decode(), "neither JSON nor base64"),
        (packed(print), "a pickle with"),
        (packed("text"), "must be a list"),
        ({"a": 1}, "must be a list"),
        ([{"input": 1, "output": "2"}], "test 0 must be an object with the texts input and output"),
        (["assert True"], "test 0 must be an object"),
        ([{"input": "1"}], "test 0 must be an object"),
        ("[" * 100_000, "neither JSON nor base64"),
        (base64.b64encode(zlib.compress(bytes(protocols.MAX_TESTS + 1))).decode(), "more than 67108864 bytes"),
    ],
)
def test_tests_that_cannot_be_read_are_refused_with_the_reason(tests: Any, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        protocols.pairs_of(tests)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"program": "x", "tests', "truncated"),
        (b'{"program": 1, "tests": []}', "Expected `str`, got `int` - at `\\$.program`"),
        (b'{"tests": []}', "missing required field `program`"),
        (b'{"program": "", "tests": [], "fn_name": "f"}', "unknown field `fn_name`"),
        (b"\xff", "not what is asked for"),
        (b"[" * 100_000, "not what is asked for"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        protocols.read_body(body, ProgramTests)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (RunCode("", "cpp"), "language 'cpp' is not known"),
        (RunCode("", "python", files={"a": "YQ=="}), "must be empty"),
        (RunCode("", "python", fetch_files=["a"]), "must be empty"),
        (RunCode("", "python", memory_limit_mb=2048), "more than the 1024 of --memory"),
        (RunCode("", "python", compile_timeout=float("inf")), "compile_timeout"),
    ],
)
def test_what_cannot_be_granted_is_refused(asked: RunCode, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        protocols.check_run(asked, 1024)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 61.0])
def test_times_are_bounded(seconds: float) -> None:
    with pytest.raises(BadRequest):
        protocols.check_seconds("run_timeout", seconds, 60.0)


@pytest.mark.parametrize(("seconds", "deadline"), [(0.5, 30.0), (6.0, 60.0), (100.0, 300.0)])
def test_the_deadline_is_that_of_the_client(seconds: float, deadline: float) -> None:
    assert ProgramTests("", [], seconds).deadline_s == deadline
    assert RunCode("", "python", compile_timeout=10, run_timeout=10).deadline_s == 30.0


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("2\n", "2", True),
        ("  1 2  \n3\n\n", "1 2\n3", True),
        ("1.0 2", "1 2.00", True),
        ("1e3", "1000", True),
        ("1\n2", "1 2", False),
        ("1 2", "1  2", True),
        ("a  b", "a b", False),
        ("", "", True),
        ("", "0", False),
        ("nan", "NaN", False),
        ("sNaN", "1", False),
        ("0.30000000000000004", "0.3", False),
    ],
)
def test_output_is_compared_line_by_line_and_numbers_as_decimals(printed: str, expected: str, same: bool) -> None:
    assert protocols.same_output(printed, expected) is same


@pytest.mark.parametrize(
    ("result", "status", "run_status", "code"),
    [
        (ScriptResult(Status.OK, 0, b"1\n"), "Success", "Finished", 0),
        (ScriptResult(Status.ERROR, 3), "Failed", "Finished", 3),
        (ScriptResult(Status.ERROR, -11), "Failed", "Finished", -11),
        (ScriptResult(Status.TIMEOUT), "Failed", "TimeLimitExceeded", None),
        (ScriptResult(Status.OUTPUT_TOO_LARGE), "Failed", "Error", None),
        (ScriptResult(Status.REJECTED, message="why"), "Failed", "Error", None),
    ],
)
def test_results_are_told_in_the_words_of_sandbox_fusion(
    result: ScriptResult, status: str, run_status: str, code: int | None
) -> None:
    answer = json.loads(protocols.run_answer(result))
    assert (answer["status"], answer["compile_result"]) == (status, None)
    assert (answer["run_result"]["status"], answer["run_result"]["return_code"]) == (run_status, code)


def test_what_is_no_verdict_says_so() -> None:
    answer = json.loads(protocols.sandbox_error("why"))
    assert (answer["status"], answer["message"], answer["run_result"]) == ("SandboxError", "why", None)
