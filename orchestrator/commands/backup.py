"""Copy a run into a folder, also while it trains; `restore` makes a run of the copy.

Each call makes one more back-up, DIR/NAME-sSTEP. On the same file system the checkpoints are hard links, which take no
room and rot with the original: keep back-ups that matter on another disk. A call that is cut off is completed by the
next.
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
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of back-ups")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    made, contents = backup.make(find_run(args), args.folder)
    if args.json:
        facts = {"path": str(made), "step": contents.step, "files": len(contents.files), "bytes": contents.bytes}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write(
            f"{made}: step {contents.step}, {len(contents.files)} files, {size(contents.bytes)}\n"
            f"next: python -m orchestrator restore {made} --run NAME\n"
        )
    return int(ExitCode.OK)
