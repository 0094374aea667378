"""Where the time of a run goes: seconds of each cycle, from its begin until it is committed.

Runs a profile for some cycles through the real daemon (or reads an existing run, with --of) and takes the times from
the store. `start`: until the first step begins (worker, imports, weights, probe); `between`: between steps
(checkpoints, and what was repeated after a failure); `leave`: from the last step to validation; `commit`: from there to
the commit. Hand-over is all of these but `between`. A second table has the parts of a start, of training and of
validation. Times are compared across processes, so a run on several hosts shows only how far their clocks agree.

What a profile of a large model loses between cycles of 20 steps that validate 60 problems, without its weights and
problems:

    python -m benchmarks cycles --profile grpo-1.5b-8gb --shape r1-qwen-1.5b --cycles 4 --steps 20 \\
        --set data.tasks=pocket-words --set grpo.variants.random_rewards=true --set grpo.sent.enabled=false \\
        --set grpo.truncated=keep --set 'validation.suites=["words"]' --set validation.examples_per_task=20 \\
        --set validation.all_within=0 --set sampling.max_completion_tokens=512   (and with validation.overlap=1)
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from benchmarks._runs import Job, run_to_its_end
from benchmarks.ranks import made_once
from profiles.named_shapes import ARCHITECTURES
from state.cycle_times import PARTS, STARTS, CycleTime, StartTime, learning_share
from state.layout import RunDir
from state.reader import Reader


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks cycles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--of", type=Path, metavar="RUN_DIR", help="read this run instead of making one")
    parser.add_argument("--profile", default="pocket")
    parser.add_argument("--cycles", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8, help="steps a cycle (8)")
    parser.add_argument("--shape", choices=ARCHITECTURES, help="train a model of this shape with random weights")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    args = parser.parse_args(arguments)
    directory = args.of or make_run(args)
    with closing(Reader.open(RunDir(directory))) as reader:
        found = reader.cycle_times(sys.maxsize, sys.maxsize)
        starts = reader.start_times(sys.maxsize)
    print(f"reproduce: python -m benchmarks cycles {' '.join(arguments)}\n")
    print(f"{table(found)}\n\n{starts_table(starts)}" if found else "no committed cycle with a step")
    return 0


def make_run(args: argparse.Namespace) -> Path:
    settings = (f"run.max_cycles={args.cycles}", f"run.steps_per_cycle={args.steps}", *args.overrides)
    with tempfile.TemporaryDirectory(prefix="longhaul-cycles-model-") as folder:
        if args.shape:
            settings = (f"model.path={made_once(args.shape, folder)}", *settings)
        return run_to_its_end(Job("cycles", args.profile, settings))


def seconds_of(one: CycleTime) -> dict[str, float]:
    """Column -> seconds, in the order of time but for the parts of steps. (pure)"""
    ends = {"leave": one.leaving, "validation": one.validation, "commit": one.committing}
    return {"start": one.starting, **one.parts, "between": one.between, **ends}


def handover_of(before: CycleTime, after: CycleTime) -> float:
    """From the last step of a cycle to the first of the next, validation aside. (pure)"""
    return before.leaving + before.committing + after.starting


def table(cycles: Sequence[CycleTime]) -> str:
    columns = ("start", *PARTS, "rest", "between", "leave", "validation", "commit")
    lines = ["cycle" + "".join(f"{name:>11}" for name in columns) + f"{'whole':>11}"]
    for one in cycles:
        lines.append(
            f"{one.cycle:>5}" + "".join(f"{seconds_of(one)[name]:>11.2f}" for name in columns) + f"{one.whole:>11.2f}"
        )
    whole = sum(one.whole for one in cycles)
    sums = {name: sum(seconds_of(one)[name] for one in cycles) for name in columns}
    lines.append("share" + "".join(f"{sums[name] / whole:>11.1%}" for name in columns))
    lines.append(f"\nrollouts and updates: {learning_share(cycles):.1%} of the time of {len(cycles)} cycles")
    if len(cycles) > 1:
        overs = [handover_of(*pair) for pair in pairwise(cycles)]
        lines.append(f"hand-over: median {statistics.median(overs):.2f} s, longest {max(overs):.2f} s")
    return "\n".join(lines)


def starts_table(starts: Sequence[StartTime]) -> str:
    """Medians by role, without those of cycle 0, which find empty caches. (pure)"""
    lines = [f"{'start of':<12}" + "".join(f"{name:>11}" for name in STARTS)]
    for role in sorted({one.role for one in starts}):
        later = [one.seconds for one in starts if one.role == role and one.cycle > 0]
        if later:
            medians = (statistics.median(one[name] for one in later) for name in STARTS)
            lines.append(f"{role:<12}" + "".join(f"{seconds:>11.2f}" for seconds in medians))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
