"""Show what the model wrote lately: tasks with their programs, and rollouts with verdict and reward.

On the dashboard: s. Rollouts are those of the newest step whose file is whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing

from orchestrator.rollout_texts import newest_rollouts
from orchestrator.runs import find_run
from orchestrator.sampled import entry_of, tasks_of
from profiles.load import from_json
from state.reader import Reader

SHOWN = 5
MOST = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--number", type=int, default=SHOWN, metavar="N", help=f"how many of each ({SHOWN})")


def run(args: argparse.Namespace) -> int:
    run_dir, number = find_run(args), min(max(1, args.number), MOST)
    with closing(Reader.open(run_dir)) as reader:
        tasks = tasks_of(reader.examples(number))
        rollouts = newest_rollouts(run_dir, reader.history(), from_json(reader.profile_json()), number)
    found = [*tasks, *rollouts]
    if args.json:
        sys.stdout.write(json.dumps([one.as_json() for one in found], indent=2) + "\n")
    else:
        lines = [line for one in found for line in entry_of(one).lines]
        sys.stdout.write("\n".join(lines or ["no task and no rollout is there yet", ""]))
    return 0
