"""Tests that the pocket model learns: held-out accuracy over training time, for seeds and controls.

Each line is one run of `python -m orchestrator run --profile pocket`, on the CPUs given with --cpus (two by default).
Training minutes exclude validation, as in `run.max_hours`; wall minutes include everything.

`statements` is the mean length of the programs proposed in the previous 20 steps, `learnable` the number of proposals
per step that were solved sometimes but not always.

Controls: `random_rewards` must not rise; `untrained_proposer` shows what training the proposer adds;
`plateau` runs on with the stagnation rule switched off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._runs import Job, add_options, chosen, lanes_of, run_all
from profiles.task_kinds import SHOWN

CONTROLS = {
    "none": [],
    "random_rewards": ["azr.variants.random_rewards=true"],
    "untrained_proposer": ["azr.variants.train_proposer=false"],
    "plateau": ["stagnation.on_plateau=continue", "stagnation.on_no_data=continue", "stagnation.on_collapse=continue"],
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, minutes=10.0)
    parser.add_argument("--control", choices=CONTROLS, default="none")
    args = parser.parse_args(arguments)
    root = args.runs or Path(tempfile.mkdtemp(prefix="longhaul-learning-"))
    lanes = lanes_of(args)
    jobs = {
        seed: Job(
            name_of(args.control, seed),
            "pocket",
            (
                f"run.seed={seed}",
                f"sandbox.jobs={len(lanes[0])}",
                *CONTROLS[args.control],
                *args.overrides,
            ),
        )
        for seed in args.seeds
    }
    curves = run_all(list(jobs.values()), lanes, args.minutes, root)
    by_seed = {seed: curves[job.name] for seed, job in jobs.items()}
    shown = table(by_seed, args)
    print(shown)
    if args.json:
        args.json.write_text(json.dumps(by_seed, indent=1))
        args.json.with_suffix(".txt").write_text(shown + "\n")
    return 0


def name_of(control: str, seed: int) -> str:
    return f"pocket-{control.replace('_', '-')}-{seed}"


def table(curves: Mapping[int, Mapping[str, Any]], args: argparse.Namespace) -> str:
    """All curves as text. (pure)"""
    tasks = "".join(f"{name:<20}" for name in (*SHOWN, "mean"))
    lines = [
        f"control: {args.control}; {args.minutes:g} training minutes",
        f"reproduce: python -m benchmarks learning {' '.join(sys.argv[2:])}\n",
        f"seed  step  train s  {tasks}T=1    worked          statements  learnable",
    ]
    for seed, curve in sorted(curves.items()):
        lines += [line(seed, entry) for entry in chosen(curve["points"])]
        lines.append(
            f"      ended {curve['state']} ({curve['reason']}) after {curve['wall_s'] / 60:.1f} min, "
            f"{curve['training_s'] / 60:.1f} of training; {curve['examples']} tasks found\n"
        )
    return "\n".join(lines)


def line(seed: int, entry: Mapping[str, Any]) -> str:
    metrics, before = entry["metrics"], entry["before"]
    cells = []
    for task in (*SHOWN, "mean"):
        score = metrics[task]
        cells.append(f"{score['accuracy']:.3f} [{score['low']:.2f}, {score['high']:.2f}]")
    worked = "/".join(f"{metrics[task].get('worked_share', 0):.2f}" for task in SHOWN)
    sampled = metrics["mean"].get("sampled_accuracy", 0.0)
    made = f"{before.get('statements', 0):>10.2f}  {before.get('learnable', 0):>9.1f}" if before else ""
    scores = "  ".join(cells)
    return (
        f"{seed:>4} {entry['step']:>5} {entry['training_s']:>8.0f}  {scores}  {sampled:.3f}  {worked}  {made}".rstrip()
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
