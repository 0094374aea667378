"""Rebuild a lost or damaged store from its newest back-up and the run's files.

What each attempt was told, did and left since then is read from checkpoints/ and cycles/. A store that is damaged is
kept in quarantine/. One that is whole is left as it is, unless an interrupted rebuild left it older than the run's
checkpoints. Needs --run NAME.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from orchestrator.display.wording import among
from orchestrator.rebuilding import finished, made_again, problem_of
from orchestrator.run_directory import make_directory, named_run
from profiles.errors import ExitCode
from state.lock import RunLock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: this command has only the common arguments."""


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    run_dir = named_run(args, "recover")
    make_directory(run_dir)
    lock = RunLock.acquire(run_dir)
    try:
        if problem := problem_of(run_dir):
            found, done = problem, made_again(run_dir)
        elif done := finished(run_dir):
            found = f"the store of run '{run_dir.name}' is older than its checkpoints"
        else:
            found = f"the store of run '{run_dir.name}' is whole; nothing was changed"
    finally:
        lock.release()
    if args.json:
        sys.stdout.write(json.dumps({"run": run_dir.name, "found": found, "done": done}) + "\n")
    else:
        next_command = among(args.runs, f"python -m orchestrator run --run {run_dir.name}")
        sys.stdout.write("\n".join([found, *done, f"next: {next_command}"]) + "\n")
    return int(ExitCode.OK)
