"""Print a script that completes commands, options, runs, profiles and knobs in bash, zsh or fish.

The script asks no Python: pressing Tab looks for runs and profiles by the shell alone. It completes `longhaul`.
"""

from __future__ import annotations

import argparse
import sys

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    from orchestrator.completion.fish import fish
    from orchestrator.completion.posix import bash, zsh
    from orchestrator.completion.words import commands

    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](commands()))
    return 0
