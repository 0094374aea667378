"""Measures a step of a profile here: two real steps, by the real machinery, in a run that is removed again."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

from orchestrator.engine_check import check_engine
from orchestrator.judging import ProfileVerdict
from orchestrator.preflight import too_small
from orchestrator.rehearsal import Rehearsal, in_a_folder
from profiles.rehearsal import steps_of
from state.reader import Reader

STEPS = 2
"""The first compiles and captures; the second is what counts."""


def measured_step(verdict: ProfileVerdict, runs: Path, args: argparse.Namespace) -> float:
    """Seconds of the second of two steps. Raises LonghaulError if the steps fail."""
    check_engine(verdict.profile)
    if verdict.is_refused:
        raise too_small(verdict, args)
    found: list[float] = []

    def take(reader: Reader) -> None:
        found.extend(reader.step_seconds(STEPS))

    wanted = args.profile or verdict.profile.name
    rehearsal = Rehearsal(
        verdict.profile,
        steps_of(verdict.profile, STEPS),
        "two steps",
        f"its own model, data and sizes, by the launcher {verdict.profile.launch.launcher}",
        f"python -m orchestrator plan --measure --profile {shlex.quote(wanted)}",
        wanted,
        "",
    )
    with redirect_stdout(sys.stderr):  # its progress; the plan itself goes to standard output
        in_a_folder(rehearsal, runs, take)
    return found[-1]
