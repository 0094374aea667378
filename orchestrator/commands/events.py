"""Show the newest events of a run, or those that contain a text.

Events are what workers report and what the master says. On the dashboard: e. `logs` shows the log and follows it.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from dataclasses import asdict

from orchestrator.pages import event_line, events_of
from orchestrator.runs import find_run
from state.reader import Reader

SHOWN = 40
MOST = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text", nargs="?", default="", metavar="TEXT", help="only events that contain this, in any case"
    )
    parser.add_argument("-n", "--number", type=int, default=SHOWN, metavar="N", help=f"how many at most ({SHOWN})")


def run(args: argparse.Namespace) -> int:
    run_dir = find_run(args)
    with closing(Reader.open(run_dir)) as reader:
        found = events_of(run_dir, reader, args.text, min(max(1, args.number), MOST))
    if args.json:
        sys.stdout.write(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{event_line(one)}\n" for one in found))
    return 0
