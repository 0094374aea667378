"""From a zygote's reply to results: what each frame claims, and what the missing ones mean.

Pure. A frame is a claim of a hostile process about its own program; it is decoded to a literal or not believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workers.sandbox.inside.codec import BadTree, decode
from workers.sandbox.inside.frames import bodies
from workers.sandbox.literal import render, same_value
from workers.sandbox.result import Result, Status

CLAIMABLE = frozenset(
    {Status.OK, Status.ERROR, Status.NOT_LITERAL, Status.MEMORY, Status.REJECTED, Status.OUTPUT_TOO_LARGE}
)

ENDINGS = {
    "cpu": Result(Status.TIMEOUT, message="CPU time used up"),
    "wall": Result(Status.TIMEOUT, message="wall time used up", from_wall=True),
    "flood": Result(Status.OUTPUT_TOO_LARGE, message="all results together are too large"),
    "signal 24": Result(Status.TIMEOUT, message="CPU time used up"),  # SIGXCPU
}


def judge(reply: bytes, expected: int, cpu_limit_s: float) -> list[Result]:
    """The results of one job, `expected` many, in order.

    A call that says itself that it took longer than its limit is late, however late the zygote came to look: on a busy
    machine the verdict stays the same. A program that lies about it gains time, never more than the zygote grants.
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
    lost = Result(Status.KILLED, message=f"not run: call {len(results) + 1} ended the process")
    return [*results, replace(fatal, cpu_s=cpu_s), *[lost] * (expected - len(results) - 1)]


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
    """Whether a call used up its CPU time, by the process's own clock.

    Once proves little: a virtual machine whose processor stands still, because its host is busy or brings a page of
    memory, charges that to the program. Calls of a millisecond were seen to take 0.4 s.
    """
    return any(result.status is Status.TIMEOUT and not result.from_wall for result in results)


def further(first: list[Result], second: list[Result]) -> list[Result]:
    """Of two runs of the same calls the one that answered more of them in a row; if equal, the second."""
    return first if _answered(first) > _answered(second) else second


def _answered(results: Sequence[Result]) -> int:
    unanswered = (place for place, one in enumerate(results) if one.status in (Status.TIMEOUT, Status.KILLED))
    return next(unanswered, len(results))


def agree(first: Sequence[Result], second: Result) -> Result:
    """One result from two calls in one process and a third in another: nondeterministic where they differ."""
    once, again = first
    for result in (once, again, second):
        # A second call that was cut off, or never made because the first was, says nothing about what it would give.
        if result.from_wall or result.status is Status.TIMEOUT:
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
