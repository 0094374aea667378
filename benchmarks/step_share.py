"""Divides a step's wall time into generation, update, sandbox and overhead.

Runs a profile for some steps through the real daemon (or reads an existing run, with --of) and takes the seconds of
each stage from the store. `generation` includes prompts; `sandbox` is parsing, screening and running programs; `rest`
is the remainder of the step: encoding, writing rollouts, events. `between` is time between steps, for checkpoints and
the master's requests. The master itself works in another process meanwhile.

A worker's first step includes warm-up, so the sums exclude it if there are others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._runs import Job, run_to_its_end
from state.cycle_times import PARTS, parts_of
from state.layout import RunDir
from state.reader import Reader

SPENT = ("sandbox", "rest", "between")
"""Overhead: everything except generation and update."""


@dataclass(frozen=True)
class Step:
    """Seconds of one step by kind. `between`: from its end to the start of the attempt's next step, if any."""

    number: int
    is_first: bool
    """Of its attempt."""
    seconds: float
    parts: Mapping[str, float]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks step_share",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--of", type=Path, metavar="RUN_DIR", help="read this run instead of starting one")
    parser.add_argument("--profile", default="pocket")
    parser.add_argument("--steps", type=int, default=20, help="steps of the one cycle (20)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    args = parser.parse_args(arguments)
    steps = read(args.of or make_run(args.profile, args.steps, args.overrides))
    if not steps:
        print(
            "error: the run has no trained step\nkept:  the run, unchanged\nnext:  let it train for a step or two",
            file=sys.stderr,
        )
        return 1
    print(f"reproduce: python -m benchmarks step_share {' '.join(arguments)}\n")
    print(table(steps))
    return 0


def make_run(profile: str, steps: int, overrides: Sequence[str]) -> Path:
    settings = ("run.max_cycles=1", f"run.steps_per_cycle={steps}", *overrides)
    return run_to_its_end(Job("step-share", profile, settings))


def read(directory: Path) -> list[Step]:
    """The trained steps of a run, oldest first."""
    reader = Reader.open(RunDir(directory))
    try:
        rows = reader.connection.execute(
            "SELECT step, cycle, attempt, t_wall, coalesce(seconds, 0), metrics FROM trained_steps ORDER BY step"
        ).fetchall()
    finally:
        reader.close()
    steps = []
    for place, (step, cycle, attempt, end, seconds, metrics) in enumerate(rows):
        later = rows[place + 1] if place + 1 < len(rows) else None
        between = 0.0
        if later is not None and later[1:3] == (cycle, attempt):
            between = max(0.0, later[3] - later[4] - end)
        is_first = place == 0 or rows[place - 1][1:3] != (cycle, attempt)
        steps.append(Step(step, is_first, seconds, parts_of(json.loads(metrics), seconds) | {"between": between}))
    return steps


def shares(steps: Sequence[Step]) -> dict[str, float]:
    """kind -> share of the total wall time, including time between steps. (pure)"""
    total = sum(step.seconds + step.parts["between"] for step in steps)
    return {kind: sum(step.parts[kind] for step in steps) / total for kind in (*PARTS, "rest", "between")}


def table(steps: Sequence[Step]) -> str:
    kinds = (*PARTS, "rest", "between")
    lines = ["  step  seconds" + "".join(f"{kind:>12}" for kind in kinds)]
    lines += [
        f"{step.number:>6}{step.seconds:>9.2f}" + "".join(f"{step.parts[kind]:>12.3f}" for kind in kinds)
        for step in steps[-20:]
    ]
    counted = [step for step in steps if not step.is_first] or list(steps)
    found = shares(counted)
    lines.append(f"share of {len(counted):>3} st." + "".join(f"{found[kind]:>12.1%}" for kind in kinds))
    spent = sum(found[kind] for kind in SPENT)
    lines.append(f"\nsandbox, rest and between together: {spent:.1%} of the wall time of a step")
    return "\n".join(lines)
