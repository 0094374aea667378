"""`python -m orchestrator`: for `run`, signal handlers first, then everything else."""

# ruff: noqa: E402 - what is imported depends on the search path, what a signal does on the handlers

import os
import sys

# The working directory holds other people's files: without this a json.py or workers.py in it would be executed.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before pathlib
if not sys.flags.safe_path and sys.path[0] != _ROOT:
    del sys.path[0]

from orchestrator.signals import SIGNALS

if sys.argv[1:2] == ["run"]:
    SIGNALS.install()

from orchestrator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
