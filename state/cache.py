"""Files that are kept between runs and can be made again: where they are. Nothing of a run depends on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "LONGHAUL_CACHE"


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder that LONGHAUL_CACHE names, else `longhaul` in the user's cache. It need not exist."""
    if named := environment.get(VARIABLE):
        return Path(named).expanduser()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "longhaul"


def keep(path: Path, data: bytes) -> None:
    """Write a file of the cache, whole or not at all; without room or permission, not at all.

    It is not made durable: after a power cut it may hold anything, which its reader must notice.
    """
    own = path.with_name(f".{path.name}.{os.getpid()}")  # several processes may make the same file at once
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            own.write_bytes(data)
            own.rename(path)
        finally:
            own.unlink(missing_ok=True)
