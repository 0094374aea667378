"""One node of a Ray cluster: `python -m workers.verl.ray_node FOLDER WORD...` runs `ray start --block WORD...`.

It ends with the process that started it, however that ends, and takes with it every process of the node and Ray's
folder. Left to themselves, some of Ray's processes outlive their head by a minute.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from state import python
from workers import process
from workers.external.processes import ADDRESS_FILE, adopt_orphans, end_children, remove_spool

TRIES = 5
"""A node gives up 15 s after its agents were started if they have not said their ports, as on a busy host or a slow
file system."""


def minimal(parameters: Any, is_head: bool) -> None:
    """Ray's own hook before a node starts. Left out are the server for remote clients, whose port would be the same for
    every job, and the dashboard's servers, as in an installation without them."""
    from ray._private import utils

    parameters.ray_client_server_port = None
    utils.get_dashboard_dependency_error = lambda: ImportError("not wanted")


def leave(*_: Any) -> None:
    # A parent with several threads dies one thread at a time, and each may send the signal.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise SystemExit


def main(folder: str, words: list[str]) -> int:
    signal.signal(signal.SIGHUP, leave)
    process.die_with_parent(signal.SIGHUP)
    adopt_orphans()
    command = python.command("ray.scripts.scripts", "start", "--block", f"--temp-dir={folder}", *words)
    hook = f"workers.verl.ray_node.{minimal.__name__}"
    environment = {**os.environ, "RAY_START_HOOK": hook}
    try:
        for _ in range(TRIES):
            code = subprocess.Popen(command, env=environment, preexec_fn=process.die_with_parent).wait()
            if (Path(folder) / ADDRESS_FILE).exists():
                break  # it was up
            end_children()
        return code
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        end_children()
        remove_spool(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
