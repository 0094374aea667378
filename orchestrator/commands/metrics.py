"""Show the metrics of a run's newest steps by name: last value, mean, curve.

On the dashboard: m. docs/metrics.md says what each one means.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing

from orchestrator.display.wording import count
from orchestrator.pages import CURVE_STEPS, metric_lines, metrics_of
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
from state.reader import Reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only metrics with one of these in their names")


def run(args: argparse.Namespace) -> int:
    run_dir = find_run(args)
    with closing(Reader.open(run_dir)) as reader:
        steps = reader.steps(CURVE_STEPS)
    found = metrics_of(steps, args.names)
    if args.names and steps and not found:
        raise LonghaulError(
            f"no metric of run '{run_dir.name}' has {' or '.join(args.names)} in its name",
            kept="the run, unchanged",
            next_command=f"python -m orchestrator metrics --run {run_dir.name}   (lists all)",
            exit_code=ExitCode.INPUT,
        )
    step = steps[-1].step if steps else 0
    if args.json:
        sys.stdout.write(
            json.dumps({"step": step, "metrics": {one.name: one.as_json() for one in found}}, indent=2) + "\n"
        )
    else:
        title = f"step {count(step)}" if steps else "no step is done yet"
        sys.stdout.write("\n".join([title, *metric_lines(found)]) + "\n")
    return 0
