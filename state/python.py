"""How another Python of ours is started: our packages come first, and nothing from the working directory. (pure)

`python -m workers` would look into the working directory before anything else, and execute a `workers.py`, `torch.py`
or `json.py` that lies there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
"""Where our packages lie: a checkout, or site-packages."""


def command(module: str, *arguments: str) -> list[str]:
    """`python -m MODULE` without the working directory. Give it an environment of `finding_us`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def finding_us(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with our packages in PYTHONPATH, and without the working directory for what a child starts.

    An empty part of PYTHONPATH, as `$PYTHONPATH:/mine` easily leaves one, would mean the working directory as well.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(dict.fromkeys([ROOT, *filter(None, given)]))
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
