"""`python -m orchestrator`. For `run`, installs the signal handlers before importing anything else."""

# ruff: noqa: E402 - imports must follow the changes to the search path and the signal handlers

import os
import sys

# Without this, a json.py or workers.py in the working directory would be executed.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before pathlib
if not sys.flags.safe_path and sys.path[0] != _ROOT:
    del sys.path[0]

from orchestrator.signals import SIGNALS

if sys.argv[1:2] == ["run"]:
    SIGNALS.install()

from orchestrator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
