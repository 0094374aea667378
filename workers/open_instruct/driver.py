"""Becomes open-instruct: `python -m workers.open_instruct.driver SOURCE INTERPRETER WORD...`. It dies with the worker.

The kernel keeps the signal for a parent's death over exec. Our packages, and those beside them, leave the path: they
are another interpreter's.
"""

from __future__ import annotations

import os
import sys

from workers import process


def main() -> None:
    process.die_with_parent()
    source, *command = sys.argv[1:]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    os.execve(command[0], command, {**kept, "PYTHONPATH": source})


if __name__ == "__main__":
    main()
