"""Turns a zygote's reply into results: decodes each frame and interprets missing ones.

Pure. A frame comes from an untrusted process: it must decode to a valid result, or the call counts as killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workers.sandbox.inside.codec import BadTree, decode
from workers.sandbox.inside.frames import bodies
from workers.sandbox.literal import render, same_value
from workers.sandbox.result import Result, ScriptResult, Status

CLAIMABLE = frozenset(
    {Status.OK, Status.ERROR, Status.NOT_LITERAL, Status.MEMORY, Status.REJECTED, Status.OUTPUT_TOO_LARGE}
)

NOT_RUN = "not run"
"""How the message of a call begins that an earlier call of its process prevented."""
ENDINGS = {
    "cpu": Result(Status.TIMEOUT, message="CPU time used up"),
    "wall": Result(Status.TIMEOUT, message="wall time used up", from_wall=True),
    "flood": Result(Status.OUTPUT_TOO_LARGE, message="all results together are too large"),
    "signal 24": Result(Status.TIMEOUT, message="CPU time used up"),  # SIGXCPU
}


def judge(reply: bytes, expected: int, cpu_limit_s: float) -> list[Result]:
    """The `expected` results of one job, in order.

    A call that reports more CPU time than its limit is a timeout, even if the zygote did not catch it in time. This
    keeps verdicts the same on a busy machine. A program that lies gains at most the time that the zygote allows.
    """
    header, _, rest = reply.partition(b"\n")
    head: Mapping[str, Any] = json.loads(header)
    spent = [*head["cpu_spent"], *[0.0] * len(head["sizes"])]
    found = zip(bodies(rest, head["sizes"]), spent, strict=False)
    results = [_in_time(_claim(body, cpu_s), cpu_limit_s) for body, cpu_s in found]
    if results and results[0].status is Status.REJECTED:
        return [results[0]] * expected
    if len(results) > expected:
        return [Result(Status.KILLED, message="more results than calls")] * expected
    if len(results) == expected:
        return results
    cpu_s = max(0.0, head["cpu_s"] - sum(head["cpu_spent"]))
    fatal = ENDINGS.get(head["ended"], Result(Status.KILLED, message=f"the process ended: {head['ended']}"))
    lost = Result(Status.KILLED, message=f"{NOT_RUN}: call {len(results) + 1} ended the process")
    return [*results, replace(fatal, cpu_s=cpu_s), *[lost] * (expected - len(results) - 1)]


def judge_script(reply: bytes, cpu_limit_s: float) -> ScriptResult:
    """The result of a script: its output and how its process ended."""
    header, _, rest = reply.partition(b"\n")
    head: Mapping[str, Any] = json.loads(header)
    seen = ScriptResult(Status.OK, stdout=rest[: head["stdout"]], stderr=rest[head["stdout"] :], cpu_s=head["cpu_s"])
    ended: str = head["ended"]
    if fatal := ENDINGS["cpu"] if seen.cpu_s > cpu_limit_s else ENDINGS.get(ended):
        return replace(seen, status=fatal.status, message=fatal.message, from_wall=fatal.from_wall)
    kind, _, number = ended.partition(" ")
    code = int(number) if kind == "exit" else -int(number)
    return replace(seen, status=Status.ERROR if code else Status.OK, exit_code=code)


def _claim(body: bytes, cpu_s: float) -> Result:
    try:
        name, tree, error_type, message, claimed_s = json.loads(body)
        status = Status(name)
        if status not in CLAIMABLE or type(error_type) is not str or type(message) is not str:
            raise ValueError("not for a program to say")
        if type(claimed_s) is float and 0 <= claimed_s < 1e6:
            cpu_s = claimed_s
        value = render(decode(tree)) if status is Status.OK else None
    except (ValueError, TypeError, RecursionError, BadTree):
        return Result(Status.KILLED, message="the process sent no valid result", cpu_s=cpu_s)
    return Result(status, value, error_type[:100], message[:500], cpu_s=cpu_s)


def _in_time(result: Result, cpu_limit_s: float) -> Result:
    if result.cpu_s <= cpu_limit_s:
        return result
    return replace(ENDINGS["cpu"], cpu_s=result.cpu_s)


def late(results: Sequence[Result]) -> bool:
    """Whether any call used up its CPU time.

    One timeout proves little: when a virtual machine's processor stalls, because the host is busy or fetches a memory
    page, the program is charged for it. Calls that need a millisecond have been seen to take 0.4 s.
    """
    return any(result.status is Status.TIMEOUT and not result.from_wall for result in results)


def further(first: list[Result], second: list[Result]) -> list[Result]:
    """Of two runs of the same calls, the one that answered more before its first failure; the second on a tie."""
    return first if _answered(first) > _answered(second) else second


def _answered(results: Sequence[Result]) -> int:
    unanswered = (place for place, one in enumerate(results) if one.status in (Status.TIMEOUT, Status.KILLED))
    return next(unanswered, len(results))


def agree(first: Sequence[Result], second: Result) -> Result:
    """Merge two calls in one process and a third in another into one result: nondeterministic if they differ."""
    once, again = first
    for result in (once, again, second):
        # A call that was cut off, or never made because an earlier one was, says nothing about determinism.
        if result.is_undecided or result.status is Status.TIMEOUT:
            return result
    for other in (again, second):
        if other.status is not once.status or other.error_type != once.error_type:
            return _differs(f"{_brief(once)}, then {_brief(other)}", once)
        if once.value is not None and not same_value(once.value, other.value or "", strict_types=True):
            return _differs(f"{_brief(once)}, then {_brief(other)}", once)
    return once


def _differs(message: str, once: Result) -> Result:
    return Result(Status.NONDETERMINISTIC, message=message, cpu_s=once.cpu_s)


def _brief(result: Result) -> str:
    return (result.value or f"{result.status.value} {result.error_type}".strip())[:120]
