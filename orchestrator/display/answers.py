"""Prints what a master answered to a command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.display.wording import among, harmless_lines


def tell(args: argparse.Namespace, answer: Mapping[str, Any], text: str) -> int:
    """Print the answer as JSON or as `text`; returns the exit code. text: ignored if the master refused."""
    if args.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    elif answer.get("ok"):
        sys.stdout.write(among(args.runs, harmless_lines(text)) + "\n")
    else:
        sys.stdout.write(f"refused: {harmless_lines(str(answer.get('error')))}\n")
    return 0 if answer.get("ok") else 1
