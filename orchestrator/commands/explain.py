"""Say in plain sentences whether a run lives and learns, what limits it, and what to do next.

At most ten, each with its evidence. Reads the store without a lock, so it works at any time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from dataclasses import asdict

from orchestrator.alive import master_pid
from orchestrator.commands.status import newest_step
from orchestrator.display.wording import among, harmless
from orchestrator.explaining import NEWEST_STEPS, Facts, explained
from orchestrator.runs import find_run
from profiles.load import from_json
from state.layout import RunDir
from state.reader import Reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only the common arguments."""


def run(args: argparse.Namespace) -> int:
    found = explained(collect(find_run(args), time.time()))
    if args.json:
        sys.stdout.write(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    else:
        sys.stdout.write(among(args.runs, "".join(f"{harmless(one.text)}\n" for one in found)))
    return 0


def collect(run_dir: RunDir, now: float) -> Facts:
    """What `explained` needs. now: UTC seconds."""
    with closing(Reader.open(run_dir)) as reader:
        history = reader.history()
        age = max(0.0, now - history.heartbeat_at)
        return Facts(
            history=history,
            profile=from_json(reader.profile_json()),
            steps=reader.steps(NEWEST_STEPS * 10),
            newest_step=newest_step(reader, history.step),
            master_pid=master_pid(run_dir, age),
            heartbeat_age_s=age,
        )
