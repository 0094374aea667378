"""Write report.html with curves, cycles and examples; of several runs, a page that compares them.

The file is self-contained and needs no network; its path is printed. With --format md a summary for a message or a pull
request goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from orchestrator.cli import refuse_name
from orchestrator.commands.compare import read
from orchestrator.comparing import as_markdown
from orchestrator.path_errors import writing
from orchestrator.report.page import write_report
from orchestrator.report.side_by_side import render
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
from state.durable import write_file
from state.layout import RunDir

LONGEST_NAME = 120
"""Bytes of the name of a page about several runs; a file's name may have 255."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="RUN", help="runs; of several, the first is compared with the others"
    )
    parser.add_argument("--format", choices=("html", "md"), default="html", help="md: for a message or a pull request")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write there (html: RUN/report.html; md: standard output)"
    )


def run(args: argparse.Namespace) -> int:
    runs = chosen(args)
    if args.format == "md":
        page = as_markdown([read(one) for one in runs])
        if args.out is None:
            sys.stdout.write(page)
            return 0
        path = written(args.out, page)
    elif len(runs) == 1 and args.out is None:
        with writing(runs[0].report, "the run, unchanged"):
            path = write_report(runs[0])
    elif len(runs) == 1:
        with writing(args.out, "the run, unchanged"):
            path = write_report(runs[0], args.out)
    else:
        path = written(args.out or args.runs / default_name(runs), render([read(one) for one in runs]))
    told = {"run": runs[0].name, "runs": [one.name for one in runs], "report": str(path)}
    sys.stdout.write(json.dumps(told) + "\n" if args.json else f"{path}\n")
    return 0


def chosen(args: argparse.Namespace) -> list[RunDir]:
    """The named runs, --run first; without a name the newest. Raises LonghaulError (INPUT, USAGE)."""
    names = [*([args.run] if args.run else []), *args.names]
    for name in names:
        refuse_name(name)
    if len(set(names)) < len(names):
        raise LonghaulError(
            "a run is named twice",
            kept="nothing was changed",
            next_command=f"python -m orchestrator report {' '.join(dict.fromkeys(names))}",
            exit_code=ExitCode.USAGE,
        )
    return [find_run(argparse.Namespace(runs=args.runs, run=name)) for name in names or [None]]


def default_name(runs: list[RunDir]) -> str:
    names = "-".join(one.name for one in runs).encode()[:LONGEST_NAME].decode(errors="ignore")
    return f"report-{names}.html"


def written(path: Path, page: str) -> Path:
    with writing(path, "the runs, unchanged"):
        write_file(path, page.encode("utf-8", "replace"))
    return path
