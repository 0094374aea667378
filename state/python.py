"""Builds the command and environment of a child Python: our packages first, never the working directory. (pure)

A plain `python -m workers` searches the working directory first, and would execute a `workers.py`, `torch.py` or
`json.py` there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
"""The folder of our packages: a checkout, or site-packages."""


def command(module: str, *arguments: str) -> list[str]:
    """`python -m MODULE` without the working directory. Use it with the environment from `finding_us`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def finding_us(environment: Mapping[str, str]) -> dict[str, str]:
    """Put our packages into PYTHONPATH, and keep the working directory out of it for the child's own children.

    Drops empty parts of PYTHONPATH, as left by `$PYTHONPATH:/mine`, because they mean the working directory too.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(dict.fromkeys([ROOT, *filter(None, given)]))
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
