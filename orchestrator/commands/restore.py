"""Make a run of a back-up or an archive, after every byte was checked.

--run names the new run; without it, it gets the name of the original.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from orchestrator import backup
from orchestrator.display.wording import among
from profiles.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a directory of `backup`, or a file of `archive`")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    made, contents = backup.restore(args.source, args.runs, args.run)
    if args.json:
        facts = {"path": str(made.root), "step": contents.step, "files": len(contents.files), "bytes": contents.bytes}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write(
            f"{made.root}: step {contents.step}, {len(contents.files)} files as they were backed up\n"
            f"next: {among(args.runs, f'python -m orchestrator run --run {made.name}')}\n"
        )
    return int(ExitCode.OK)
