"""Plays schedules; prints the command that repeats each one in which something was wrong.

    python -m tests.faults.simulation 0 1000            the schedules of these seeds (the last one left out)
    python -m tests.faults.simulation 17                one, with its story and what its masters said
    python -m tests.faults.simulation 0 100000 --jobs 8

The exit code is 1 if a schedule went wrong.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HASH_SEED = "0"
"""Sets must have the same order each time that a schedule is played."""
MEMORY = Path("/dev/shm")


def main() -> int:
    args = parser().parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.faults.simulation", *sys.argv[1:]])
    last = args.first + 1 if args.last is None else args.last
    if args.jobs > 1:
        return in_parallel(args.first, last, args.jobs)
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        return play(args.first, last, Path(folder), is_told=args.last is None, until_wrong=args.until_wrong)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.faults.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("first", type=int, help="seed")
    made.add_argument("last", type=int, nargs="?", help="seed that is left out; without it, one schedule is told")
    made.add_argument("--until-wrong", action="store_true", help="end with the first schedule that goes wrong")
    made.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (%(default)s)")
    return made


def in_parallel(first: int, last: int, jobs: int) -> int:
    """Each process plays a part of the seeds."""
    each = -(-(last - first) // jobs)
    parts = [(at, min(at + each, last)) for at in range(first, last, each)]
    command = [sys.executable, "-m", "tests.faults.simulation"]
    started = [subprocess.Popen([*command, str(begin), str(end)]) for begin, end in parts]
    return max(process.wait() for process in started)


def play(first: int, last: int, folder: Path, *, is_told: bool = False, until_wrong: bool = False) -> int:
    """Play the schedules of these seeds; returns the exit code."""
    logging.disable(logging.CRITICAL)  # workers log what is done to them
    from tests.faults.simulation.schedule import Schedule, drawn_faults, profile_of_all
    from tests.faults.simulation.world import Violation, World

    profile = profile_of_all()
    undisturbed = Schedule(-1, folder / "run", profile)
    clean = {1: undisturbed.play(), 2: Schedule(-1, folder / "run", profile_of_all(max_cycles=2)).play()}
    bad, faults, starts = 0, Counter[str](), 0
    began = time.perf_counter()
    for seed in range(first, last):
        schedule = Schedule(seed, folder / "run", profile, clean)
        schedule.faults = drawn_faults(World(seed), undisturbed.world.ticks)
        try:
            schedule.play()
        except (Violation, AssertionError) as error:
            bad += 1
            print(f"seed {seed}: {error}\n    python -m tests.faults.simulation {seed}", flush=True)
            if until_wrong:
                return 1
        faults.update(schedule.happened)
        starts += schedule.starts
        if is_told:
            print(schedule.log.getvalue(), "\n".join(schedule.world.story), sep="\n")
    minutes = (time.perf_counter() - began) / 60
    print(
        f"{last - first:,} schedules with {faults.total():,} faults and {starts:,} starts of a master, {bad} wrong; "
        f"{(last - first) / minutes:,.0f} a minute"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
