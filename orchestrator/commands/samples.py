"""Show the newest tasks of a run: program, input, output and how many answers are right.

On the dashboard: s.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing

from orchestrator.pages import entry_of, tasks_of
from orchestrator.runs import find_run
from state.reader import Reader

SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--number", type=int, default=SHOWN, metavar="N", help=f"how many ({SHOWN})")


def run(args: argparse.Namespace) -> int:
    with closing(Reader.open(find_run(args))) as reader:
        found = tasks_of(reader.examples(max(1, args.number)))
    if args.json:
        sys.stdout.write(json.dumps([one.as_json() for one in found], indent=2) + "\n")
    elif not found:
        sys.stdout.write("no task is there yet\n")
    else:
        sys.stdout.write("\n".join(line for one in found for line in entry_of(one).lines))
    return 0
