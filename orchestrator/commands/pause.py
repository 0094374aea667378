"""Pause a run after its current step; it stays paused until `resume`.

The worker keeps the GPU for some minutes (timeouts.paused_s), then checkpoints and ends. A paused run stays paused
when its master is killed and started again; `stop` ends the run and with it the pause. Returns once nothing trains.
"""

from __future__ import annotations

import argparse

from orchestrator.control import ask, seconds
from orchestrator.display.answers import tell
from orchestrator.runs import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=seconds, default=1800.0, metavar="S", help="seconds to wait (1800)")


def run(args: argparse.Namespace) -> int:
    answer = ask(find_run(args), "pause", args.timeout)
    return tell(args, answer, f"paused {answer.get('note')}; to go on: python -m orchestrator resume")
