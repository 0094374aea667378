"""Compare runs: figures and curves, a paired test on held-out problems, differences of the profiles.

Reads stores without locks. The first run named is what the others are compared with.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing

from orchestrator.cli import refuse_name
from orchestrator.comparing import NEWEST_STEPS, Compared, as_json, as_markdown, as_text, compared_metrics
from orchestrator.display.scores import Score
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir
from state.reader import Reader

FORMATS = {"text": as_text, "md": as_markdown}
POINTS = 160
"""Points of a curve: several curves share a chart."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="RUN", help="two or more runs; one beside --run")
    parser.add_argument("--format", choices=FORMATS, default="text", help="md: tables for a message or a pull request")


def run(args: argparse.Namespace) -> int:
    names = [*([args.run] if args.run else []), *args.names]
    for name in names:
        refuse_name(name)
    if len(names) < 2:
        raise LonghaulError(
            "one run alone cannot be compared",
            kept="nothing was changed",
            next_command=f"python -m orchestrator compare {names[0]} RUN",
            exit_code=ExitCode.USAGE,
        )
    runs = [read(find_run(argparse.Namespace(runs=args.runs, run=name))) for name in names]
    sys.stdout.write(json.dumps(as_json(runs), indent=2) + "\n" if args.json else FORMATS[args.format](runs))
    return 0


def read(run_dir: RunDir) -> Compared:
    with closing(Reader.open(run_dir)) as reader:
        validations = reader.thinned_validations(POINTS)
        return Compared(
            history=reader.history(),
            profile=json.loads(reader.profile_json()),
            newest=reader.steps(NEWEST_STEPS),
            series=reader.series(compared_metrics(reader.metric_names()), POINTS),
            validations=validations,
            greedy={suite: every_score(reader, suite) for suite in {one.suite for one in validations}},
        )


def every_score(reader: Reader, suite: str) -> list[Score]:
    return [Score(*row) for row in reader.mean_scores(suite)]
