"""Compares expressions, each in a process of its own. `symbolic.py` starts this server.

Standard input: a line [gold, answer] in JSON; standard output: "ready", then a line {"is_equal", "reason"} for each.
Each question gets its own fork, so none sees what another did to memory or to sympy's caches. The server exits
when its input ends.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from typing import Any

import msgspec

from workers.verifiers.symbolic import Equality, Limits

SLACK = 4096
"""Most bytes of a reason that a child sends: less than a pipe's capacity, so it never waits for its reader."""


def is_equal(gold: str, answer: str) -> bool:
    """math-verify's verdict. Its own time limits, which are signals, are off; the kernel enforces ours."""
    from math_verify import LatexExtractionConfig, parse, verify

    # LaTeX only: math-verify's other parser passes text to sympy's parse_expr, which evaluates it as Python.
    config = [LatexExtractionConfig()]
    parsed = [
        parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
        for text in (gold, answer)
    ]
    if not all(parsed):
        return False
    return bool(verify(parsed[0], parsed[1], timeout_seconds=None, raise_on_error=True))


def compare(gold: str, answer: str, limits: Limits) -> Equality:
    """The verdict of a child under `limits`. If it dies, that is the verdict too."""
    result_r, result_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(result_r)
        _child(gold, answer, limits, result_w)
    os.close(result_w)
    is_late = not select.select([result_r], [], [], limits.wall_s)[0]
    if is_late:
        os.kill(pid, signal.SIGKILL)
    reply = b"" if is_late else os.read(result_r, SLACK)
    os.close(result_r)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if reply:
        return msgspec.json.decode(reply, type=Equality)
    if is_late:
        return Equality(False, f"could not be compared within {limits.wall_s:g} s of wall time")
    if code in (-signal.SIGXCPU, -signal.SIGKILL):  # the soft limit, or the hard one for very long numbers
        return Equality(False, f"could not be compared within {limits.cpu_s} s")
    return Equality(False, f"could not be compared: its process ended with {code}")


def _child(gold: str, answer: str, limits: Limits, result_w: int) -> None:
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # a library's output about a model's text must not be taken for a verdict
            os.dup2(nowhere, stream)
        memory = limits.memory_mb << 20
        for limit, value in (
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NPROC, 0),
        ):
            resource.setrlimit(limit, (value, value))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
        os.write(result_w, msgspec.json.encode(_verdict(gold, answer)))
        code = 0
    finally:
        os._exit(code)


def _verdict(gold: str, answer: str) -> Equality:
    try:
        if is_equal(gold, answer):
            return Equality(True, "equal, says math-verify")
        return Equality(False, "not equal, says math-verify")
    except MemoryError:
        return Equality(False, "could not be compared: it needs too much memory")
    except RecursionError:
        return Equality(False, "could not be compared: it is too deep")
    except Exception as error:  # a parser of hostile text may raise anything; the trainer must survive it
        return Equality(False, f"could not be compared: {type(error).__name__}")


def main(arguments: list[str]) -> int:
    limits = msgspec.json.decode(arguments[0], type=Limits)
    answers: Any = sys.stdout.buffer
    try:
        works = is_equal("2", r"\sqrt{4}") and not is_equal("3", r"\sqrt{4}")
        why = "it does not find that \\sqrt{4} is 2"
    except Exception as error:
        works, why = False, f"{type(error).__name__}: {error}".splitlines()[0]
    answers.write(b"ready\n" if works else why.encode() + b"\n")
    answers.flush()
    if not works:
        return 1
    for line in sys.stdin.buffer:
        gold, answer = msgspec.json.decode(line, type=tuple[str, str])
        answers.write(msgspec.json.encode(compare(gold, answer, limits)) + b"\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
