"""`python -m orchestrator`: for `run`, signal handlers first, then everything else."""

import sys

from orchestrator.signals import SIGNALS

if sys.argv[1:2] == ["run"]:
    SIGNALS.install()

from orchestrator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
