"""From what a zygote reports to results: claims that are believed, and what missing ones mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.inside.frames import FRAME_HEAD
from workers.sandbox.result import Result, Status
from workers.sandbox.verdict import agree, further, judge, late


def reply(bodies: list[bytes], ended: str = "exit 0", cpu_s: float = 0.5) -> bytes:
    head = {"id": 1, "sizes": [len(body) for body in bodies], "cpu_spent": [], "ended": ended, "cpu_s": cpu_s}
    return json.dumps(head).encode() + b"\n" + b"".join(bytes(FRAME_HEAD) + body for body in bodies)


def claim(status: str, value: Any = None, error_type: str = "", message: str = "", cpu_s: Any = None) -> bytes:
    return json.dumps([status, value, error_type, message, cpu_s]).encode()


@pytest.mark.parametrize(
    ("body", "status", "value"),
    [
        (claim("ok", ["l", 1, ["f", "0x1.8p+0"]]), Status.OK, "[1, 1.5]"),
        (claim("ok", ["s", 2, 1]), Status.OK, "{1, 2}"),
        (claim("error", None, "ValueError", "no"), Status.ERROR, None),
        (claim("memory"), Status.MEMORY, None),
        (claim("output_too_large"), Status.OUTPUT_TOO_LARGE, None),
        (claim("timeout"), Status.KILLED, None),
        (claim("nondeterministic"), Status.KILLED, None),
        (claim("ok", {"a": 1}), Status.KILLED, None),
        (claim("ok", 1.5), Status.KILLED, None),
        (claim("ok", ["x", 1]), Status.KILLED, None),
        (claim("ok", ["l"] * 10_001), Status.KILLED, None),
        (b'["ok", NaN, "", "", null]', Status.KILLED, None),
        (b'["ok", 1e999, "", "", null]', Status.KILLED, None),
        (b'["error", null, 5, "", null]', Status.KILLED, None),
        (b"[" * 100_000, Status.KILLED, None),
        (b"\xff", Status.KILLED, None),
        (b"{}", Status.KILLED, None),
        (b"", Status.KILLED, None),
        (b'["ok", ' + b"9" * 5000 + b', "", "", null]', Status.KILLED, None),
    ],
)
def test_a_claim_is_decoded_to_a_literal_or_not_believed(body: bytes, status: Status, value: str | None) -> None:
    (result,) = judge(reply([body]), 1, 1.0)
    assert (result.status, result.value) == (status, value)


@pytest.mark.parametrize(
    ("ended", "status", "from_wall"),
    [
        ("cpu", Status.TIMEOUT, False),
        ("signal 24", Status.TIMEOUT, False),
        ("wall", Status.TIMEOUT, True),
        ("flood", Status.OUTPUT_TOO_LARGE, False),
        ("signal 9", Status.KILLED, False),
        ("signal 31", Status.KILLED, False),
        ("bad nonce", Status.KILLED, False),
        ("exit 0", Status.KILLED, False),
    ],
)
def test_the_first_missing_result_tells_how_the_process_ended(ended: str, status: Status, from_wall: bool) -> None:
    good, fatal, lost = judge(reply([claim("ok", 1)], ended), 3, 1.0)
    assert good.value == "1"
    assert (fatal.status, fatal.from_wall) == (status, from_wall)
    assert lost.status is Status.KILLED
    assert lost.message == "not run: call 2 ended the process"


@pytest.mark.parametrize(
    ("cpu_s", "status"),
    [
        pytest.param(0.9, Status.OK, id="within the limit"),
        pytest.param(1.1, Status.TIMEOUT, id="beyond it, though the zygote came too late to kill"),
        pytest.param(None, Status.OK, id="not told"),
        pytest.param(-5.0, Status.OK, id="nonsense is not believed"),
        pytest.param("1", Status.OK, id="nor another type"),
    ],
)
def test_a_call_that_took_too_long_is_late_whenever_it_is_looked_at(cpu_s: Any, status: Status) -> None:
    (result,) = judge(reply([claim("ok", 1, cpu_s=cpu_s)]), 1, 1.0)
    assert (result.status, result.from_wall) == (status, False)


def test_more_results_than_calls_are_none_at_all() -> None:
    assert [result.status for result in judge(reply([claim("ok", 1)] * 3), 2, 1.0)] == [Status.KILLED] * 2


def test_a_rejected_program_is_rejected_for_every_input() -> None:
    results = judge(reply([claim("rejected", None, "", "syntax error")]), 3, 1.0)
    assert [result.status for result in results] == [Status.REJECTED] * 3


@given(st.lists(st.binary(max_size=50), max_size=4), st.integers(1, 4))
def test_whatever_comes_there_are_as_many_results_as_calls(bodies: list[bytes], expected: int) -> None:
    assert len(judge(reply(bodies), expected, 1.0)) == expected


OK_1, OK_TRUE = Result(Status.OK, "1"), Result(Status.OK, "True")
FAILED, OTHER = Result(Status.ERROR, error_type="A", message="at 0x1"), Result(Status.ERROR, error_type="B")
WALL, LATE = Result(Status.TIMEOUT, from_wall=True), Result(Status.TIMEOUT)
LOST = Result(Status.KILLED, message="not run: call 1 ended the process")
DIED = Result(Status.KILLED, is_lost=True)


@pytest.mark.parametrize(
    ("results", "is_late"),
    [
        ([OK_1, FAILED], False),
        ([OK_1, LATE, LOST], True),
        ([WALL, LOST], False),
        ([LATE, OK_1], True),
        ([LOST, LOST], False),
    ],
)
def test_late_is_what_used_up_its_cpu_time(results: list[Result], is_late: bool) -> None:
    assert late(results) is is_late


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        pytest.param([], [OK_1], "second", id="the only run"),
        pytest.param([OK_1, LATE], [OK_1, OK_1], "second", id="in time at last"),
        pytest.param([OK_1, LATE], [LATE, LOST], "first", id="late earlier"),
        pytest.param([OK_1, LATE], [OK_1, LATE], "second", id="late at the same call"),
        pytest.param([LATE, OK_1], [FAILED, OK_1], "second", id="an error is an answer"),
        pytest.param([FAILED, LATE], [LOST, LOST], "first", id="the sandbox died"),
    ],
)
def test_of_two_runs_the_one_that_answered_more_counts(first: list[Result], second: list[Result], kept: str) -> None:
    assert further(first, second) is {"first": first, "second": second}[kept]


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        pytest.param((OK_1, OK_1, OK_1), Status.OK, id="three times the same"),
        pytest.param((OK_1, OK_TRUE, OK_1), Status.NONDETERMINISTIC, id="other type"),
        pytest.param((OK_1, OK_1, FAILED), Status.NONDETERMINISTIC, id="fails in the other process"),
        pytest.param((FAILED, FAILED, OTHER), Status.NONDETERMINISTIC, id="another error"),
        pytest.param((FAILED, FAILED, FAILED), Status.ERROR, id="the same error"),
        pytest.param((OK_1, OK_1, WALL), Status.TIMEOUT, id="the wall clock decides nothing"),
        pytest.param((LATE, LOST, LATE), Status.TIMEOUT, id="the second call was never made"),
        pytest.param((OK_1, OK_1, DIED), Status.KILLED, id="the sandbox died"),
    ],
)
def test_three_calls_must_agree(calls: tuple[Result, Result, Result], status: Status) -> None:
    result = agree(calls[:2], calls[2])
    assert result.status is status
    assert (result.from_wall, result.is_lost) == (WALL in calls, DIED in calls)
