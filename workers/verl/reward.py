"""Our verifiers as verl's reward function. verl loads this file by its path, in processes of its own."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import nullcontext
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec

from workers.sandbox.server.protocols import ProgramTests, call_for
from workers.sandbox.server.tally import VERDICT
from workers.tasks.prompts.response import last_program
from workers.verifiers.symbolic import Symbolic
from workers.verifiers.verify import judge
from workers.verl import signals, verdicts

CODE = "code"
"""`data_source` of problems whose answers are programs; their `ground_truth` is a JSON list of tests."""
TRIES = 4
TRY_AGAIN_S = 2.0
LATER_S = 30.0
"""The client waits so much longer than the server says it will, as the answer must come back too."""


class NoVerdict(RuntimeError):
    """A program was not judged. verl leaves such a rollout out of its group, which is not what a reward of 0 does."""


_one_at_a_time = threading.Lock()
"""verl calls from several threads, and the comparing process answers one."""


@cache
def _symbolic() -> Symbolic:
    return Symbolic()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    lenient: bool = False,
    verifier: str = "exact",
    program_s: float = 2.0,
) -> dict[str, float]:
    """1 for a right answer, else 0, as `score` and `acc`. verl's name and arguments; the rest is of the profile.

    program_s: CPU seconds of each test. Raises NoVerdict where the code server gave none, after it told the worker.
    """
    if data_source == CODE:
        right = _passes(signals.folder(), last_program(solution_str) or "", json.loads(ground_truth), program_s)
    else:
        symbolic = _symbolic() if verifier == "math-verify" else None
        with _one_at_a_time if symbolic else nullcontext():
            right = judge(ground_truth, solution_str, lenient=lenient, symbolic=symbolic).correct
    return {"score": float(right), "acc": float(right), "index": float((extra_info or {}).get("index", -1))}


def _passes(control: Path, program: str, tests: list[Any], program_s: float) -> bool:
    if not program:
        return False
    for attempt in range(1, TRIES + 1):
        try:
            found = _results(_server(control), ProgramTests(program, tests, program_s))
        except urllib.error.HTTPError as error:
            lost, is_final = f"HTTP {error.code}", error.code < 500
        except (OSError, ValueError, LookupError, TypeError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            lost, is_final = type(reason).__name__, False
        else:
            verdicts.note(control, VERDICT)
            return len(found) == len(tests) and all(found)
        if is_final:
            break
        if attempt < TRIES:
            time.sleep(TRY_AGAIN_S * attempt)
    verdicts.note(control, lost)
    raise NoVerdict(f"the code server gave no verdict: {lost}")


def _results(server: str, asked: ProgramTests) -> list[int]:
    request = urllib.request.Request(
        f"{server}/{call_for(asked.tests)}",
        data=msgspec.json.encode(asked),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=asked.deadline_s + LATER_S) as response:
        return list(json.loads(response.read())["results"])


@cache
def _server(control: Path) -> str:
    return (control / verdicts.ADDRESS).read_text()
