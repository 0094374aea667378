"""Hand-over: seconds from the last step of a cycle to the first step of the next, without validation.

Runs the pocket profile for some cycles through the real daemon (or reads an existing run, with --of) and takes the gaps
from the store: from the end of a cycle's last step to the start of the next cycle's first, minus the time between the
validation worker's `started` and `done`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from state.layout import RunDir
from state.reader import Reader


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks handover", description=__doc__)
    parser.add_argument("--of", type=Path, metavar="RUN_DIR", help="read this run instead of making one")
    parser.add_argument("--cycles", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8, help="steps a cycle (8)")
    args = parser.parse_args(arguments)
    directory = args.of or make_run(args.cycles, args.steps)
    rows = gaps(directory)
    print(f"reproduce: python -m benchmarks handover {' '.join(arguments)}\n")
    print("cycle  gap s  validation s  hand-over s  (leaving s, entering s)")
    for cycle, gap, validation, leaving, entering in rows:
        over = leaving + entering
        print(f"{cycle:>5}  {gap:5.2f}  {validation:12.2f}  {over:11.2f}  ({leaving:.2f}, {entering:.2f})")
    overs = [leaving + entering for *_, leaving, entering in rows]
    if overs:
        print(f"\nhand-over: median {statistics.median(overs):.2f} s, max {max(overs):.2f} s, n {len(overs)}")
    return 0


def make_run(cycles: int, steps: int) -> Path:
    root = Path(tempfile.mkdtemp(prefix="longhaul-handover-"))
    settings = [f"run.max_cycles={cycles}", f"run.steps_per_cycle={steps}"]
    command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", "pocket", "--runs", str(root)]
    command += [word for setting in settings for word in ("--set", setting)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return root / "pocket"


def gaps(directory: Path) -> list[tuple[int, float, float, float, float]]:
    """(cycle that begins, whole gap, validation, last step to validation, validation to first step), in seconds."""
    reader = Reader.open(RunDir(directory))
    query = reader.connection.execute
    steps = query(
        "SELECT cycle, min(t_wall - seconds), max(t_wall) FROM steps WHERE trained=1 GROUP BY cycle"
    ).fetchall()
    begins = {cycle: begin for cycle, begin, _ in steps}
    ends = {cycle: end for cycle, _, end in steps}
    validations = query(
        "SELECT cycle, min(t_wall) FILTER (WHERE type='started'), max(t_wall) FILTER (WHERE type='done')"
        " FROM events WHERE role='validate' GROUP BY cycle"
    ).fetchall()
    reader.close()
    rows = []
    for cycle, started, done in validations:
        if cycle in ends and cycle + 1 in begins:
            gap = begins[cycle + 1] - ends[cycle]
            rows.append((cycle + 1, gap, done - started, started - ends[cycle], begins[cycle + 1] - done))
    return rows


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
