"""Follows docs/tutorial.md word by word in a fresh clone, and checks that the model has learned: `make tutorial`.

All boxes run in one shell, in their order, each command as it stands; `<this repository>` is this one. Prints when each
box begins. Exit code 1 if a command fails, if it takes longer than ten minutes, or if the last score is too low. With
fewer cycles than the page asks for, the score is not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
BOX = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_CYCLES = 4
CYCLES = f"longhaul cycles +{MOST_CYCLES}"
LIMIT_S = 600.0
LEARNED = 0.8
"""Greedy accuracy that a run of 100 steps is past on every seed (docs/pocket.md)."""


def boxes(page: str) -> list[str]:
    """What a reader types, in order. (pure)"""
    return BOX.findall(page)


def script_of(typed: list[str]) -> str:
    """One shell script that stops at the first command that fails, and tells when each box begins. (pure)"""
    parts = ["set -eo pipefail"]
    for number, box in enumerate(typed, 1):
        first = box.splitlines()[0]
        parts.append(f"echo; echo '== box {number} at '$SECONDS' s: '{json.dumps(first)}")
        parts.append(box.replace("<this repository>", str(REPOSITORY)))
    return "\n".join([*parts, "echo; echo '== end at '$SECONDS' s'"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="longest time in all (%(default)s)")
    parser.add_argument("--packages-of", type=Path, metavar="VENV", help="use its packages (see scripts/setup.sh)")
    parser.add_argument(
        "--cycles",
        type=int,
        choices=range(1, MOST_CYCLES + 1),
        default=MOST_CYCLES,
        help="after the first (%(default)s)",
    )
    parser.add_argument("--python", help="the Python to make .venv with (PYTHON of scripts/setup.sh)")
    args = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    if args.python:
        environment["PYTHON"] = args.python
    if args.packages_of:
        environment["PACKAGES_OF"] = str(args.packages_of.resolve())
    script = script_of(boxes((REPOSITORY / "docs/tutorial.md").read_text()))
    if CYCLES not in script:
        parser.error(f"docs/tutorial.md does not type: {CYCLES}")
    script = script.replace(CYCLES, f"longhaul cycles +{args.cycles}")
    with tempfile.TemporaryDirectory(prefix="longhaul-tutorial-") as folder:
        began = time.monotonic()
        try:
            code = subprocess.run(
                ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, timeout=args.limit_s
            ).returncode
        except subprocess.TimeoutExpired:
            print(f"the tutorial was not through after {args.limit_s:.0f} s", file=sys.stderr)
            return 1
        if code:
            print(f"a command of the tutorial ended with {code}; its output is above", file=sys.stderr)
            return 1
        took = time.monotonic() - began  # without the removal of the clone, which nobody who reads it does
        accuracy = score(Path(folder) / "longhaul", environment)
    print(f"tutorial: {took:.0f} s, held-out greedy accuracy {accuracy:.3f}")
    return int(args.cycles == MOST_CYCLES and accuracy < LEARNED)


def score(clone: Path, environment: dict[str, str]) -> float:
    words = [".venv/bin/python", "-m", "orchestrator", "status", "--run", "first", "--json"]
    found = json.loads(subprocess.run(words, cwd=clone, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    return float(found["validation"]["metrics"]["mean"]["accuracy"])


if __name__ == "__main__":
    raise SystemExit(main())
