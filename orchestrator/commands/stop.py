"""Finish the step, checkpoint and stop.

With --now, stop at once. This loses the steps since the last checkpoint, but nothing that was committed.
"""

from __future__ import annotations

import argparse
import json
import sys

from orchestrator.control import ask, seconds
from orchestrator.display.wording import harmless
from orchestrator.runs import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="do not finish the step")
    parser.add_argument("--timeout", type=seconds, default=1800.0, metavar="S", help="seconds to wait (1800)")


def run(args: argparse.Namespace) -> int:
    answer = ask(find_run(args), "abort" if args.now else "stop", args.timeout)
    text = f"stopped; the head is step {answer.get('step')}"
    if not answer.get("ok"):
        text = f"stopped, and the head is step {answer.get('step')}: {harmless(str(answer.get('error')))}"
    sys.stdout.write((json.dumps(answer) if args.json else text) + "\n")
    return 0 if answer.get("ok") else 1
