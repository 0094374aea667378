"""Pack a run into one file for another machine, also while it trains.

`restore FILE` makes a run of it there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from orchestrator import backup
from orchestrator.display.wording import size
from orchestrator.runs import find_run
from profiles.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="such as night.tar; it must not be there yet")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    contents = backup.archive(find_run(args), args.file)
    taken = args.file.stat().st_size
    if args.json:
        facts = {"path": str(args.file), "step": contents.step, "files": len(contents.files), "bytes": taken}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write(
            f"{args.file}: step {contents.step}, {len(contents.files)} files, {size(taken)}\n"
            f"next: python -m orchestrator restore {args.file} --run NAME\n"
        )
    return int(ExitCode.OK)
