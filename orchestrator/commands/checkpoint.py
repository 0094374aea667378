"""Make a durable checkpoint at the end of the current step, without stopping.

Returns once the checkpoint and its row in the store are durable, and prints its step and digest.
"""

from __future__ import annotations

import argparse
import json
import sys

from orchestrator.control import ask, seconds
from orchestrator.runs import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=seconds, default=900.0, metavar="S", help="seconds to wait (900)")


def run(args: argparse.Namespace) -> int:
    answer = ask(find_run(args), "checkpoint", args.timeout)
    if args.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    elif answer.get("ok"):
        sys.stdout.write(f"checkpoint: step {answer['step']}, digest {answer['digest']} ({answer['note']})\n")
    else:
        sys.stdout.write(f"no checkpoint: {answer.get('error')}\n")
    return 0 if answer.get("ok") else 1
