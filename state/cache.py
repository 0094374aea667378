"""Files that are kept between runs and can be made again: where they are. Nothing of a run depends on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "LONGHAUL_CACHE"


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder that LONGHAUL_CACHE names, else `longhaul` in the user's cache. It need not exist."""
    if named := environment.get(VARIABLE):
        return Path(named).expanduser()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "longhaul"
