"""Write report.html with curves, cycles and examples.

The file is self-contained and needs no network. Prints its path.
"""

from __future__ import annotations

import argparse
import json
import sys

from orchestrator.path_errors import writing
from orchestrator.report.page import write_report
from orchestrator.runs import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only the common arguments."""


def run(args: argparse.Namespace) -> int:
    run_dir = find_run(args)
    with writing(run_dir.report, "the run, unchanged"):
        path = write_report(run_dir)
    sys.stdout.write(json.dumps({"run": run_dir.name, "report": str(path)}) + "\n" if args.json else f"{path}\n")
    return 0
