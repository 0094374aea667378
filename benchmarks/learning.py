"""Does the pocket model learn? Held-out accuracy over training time, for seeds and controls, through the real daemon.

Each line is one run of `python -m orchestrator run --profile pocket`, on the CPUs given with --cpus (two by default).
Training minutes exclude validation, as in `run.max_hours`; wall minutes are everything.

`statements` is the mean length of the programs proposed in the 20 steps before, `learnable` how many proposals of a
step were solved sometimes, but not always.

Controls: `random_rewards` must not rise; `untrained_proposer` shows what training the proposer adds;
`plateau` runs on with the stagnation rule switched off.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

from state.history import StepFacts, ValidationFacts
from state.layout import RunDir
from state.reader import Reader

CONTROLS = {
    "none": [],
    "random_rewards": ["azr.random_rewards=true"],
    "untrained_proposer": ["azr.train_proposer=false"],
    "plateau": ["stagnation.on_plateau=continue", "stagnation.on_no_data=continue"],
}
TASKS = ("ded", "abd", "ind")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=10.0, help="training minutes of each run (10)")
    parser.add_argument("--control", choices=CONTROLS, default="none")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--cpus", default="0,1", help="CPUs of a run, as in 0,1; several runs side by side: 0,1:2,3")
    parser.add_argument("--runs", type=Path, help="keep the runs in this folder")
    parser.add_argument("--json", type=Path, help="also write all curves to this file")
    args = parser.parse_args(arguments)
    root = args.runs or Path(tempfile.mkdtemp(prefix="longhaul-learning-"))
    lanes = [[int(cpu) for cpu in lane.split(",")] for lane in args.cpus.split(":")]
    waiting, curves = list(args.seeds), {}
    running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
    while waiting or running:
        while waiting and len(running) < len(lanes):
            lane = next(n for n in range(len(lanes)) if n not in running)
            seed = waiting.pop(0)
            running[lane] = (seed, start(args, root, seed, lanes[lane]))
        time.sleep(0.5)
        for lane, (seed, process) in list(running.items()):
            if process.poll() is not None:
                curves[seed] = read_curve(root / name_of(args.control, seed))
                del running[lane]
    show(curves, args)
    if args.json:
        args.json.write_text(json.dumps(curves, indent=1))
    return 0


def name_of(control: str, seed: int) -> str:
    return f"pocket-{control.replace('_', '-')}-{seed}"


def start(args: argparse.Namespace, root: Path, seed: int, cpus: list[int]) -> subprocess.Popen[bytes]:
    root.mkdir(parents=True, exist_ok=True)
    settings = [
        f"run.seed={seed}", f"run.max_hours={args.minutes / 60}", f"run.threads={len(cpus)}",
        f"sandbox.jobs={len(cpus)}", *CONTROLS[args.control], *args.overrides,
    ]  # fmt: skip
    name = name_of(args.control, seed)
    command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", "pocket", "--run", name]
    command += ["--runs", str(root)] + [word for setting in settings for word in ("--set", setting)]
    with (root / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=lambda: os.sched_setaffinity(0, cpus)
        )


def read_curve(directory: Path) -> dict[str, object]:
    """The run's validations with the training seconds before each, and how it ended."""
    reader = Reader.open(RunDir(directory))
    try:
        history = reader.history()
        steps = reader.steps(1_000_000)
        seconds = training_seconds(steps)
        points = [point(validation, seconds, steps) for validation in reader.validations(100_000)]
    finally:
        reader.close()
    return {
        "points": points,
        "state": str(history.state),
        "reason": history.stop_reason,
        "wall_s": history.heartbeat_at - history.created_at,
        "training_s": history.training_s,
        "examples": history.examples,
    }


def training_seconds(steps: tuple[StepFacts, ...]) -> dict[int, float]:
    total, at = 0.0, {0: 0.0}
    for step in steps:
        total += step.seconds
        at[step.step] = total
    return at


def point(validation: ValidationFacts, seconds: dict[int, float], steps: tuple[StepFacts, ...]) -> dict[str, object]:
    """A validation, with what was proposed in the 20 steps before it."""
    before = [step.metrics for step in steps if validation.step - 20 < step.step <= validation.step]
    names = ("statements", "learnable") if before else ()
    proposed = {name: mean([metrics.get(name, 0.0) for metrics in before]) for name in names}
    return {
        "step": validation.step, "training_s": seconds.get(validation.step, 0.0), "metrics": validation.metrics,
        "proposed": proposed,
    }  # fmt: skip


def show(curves: dict[int, dict[str, object]], args: argparse.Namespace) -> None:
    print(f"control: {args.control}; {args.minutes:g} training minutes; CPUs {args.cpus}")
    print(f"reproduce: python -m benchmarks learning {' '.join(sys.argv[2:])}\n")
    tasks = "".join(f"{name:<20}" for name in (*TASKS, "mean"))
    print(f"seed  step  train s  {tasks}T=1    worked          statements  learnable")
    for seed, curve in sorted(curves.items()):
        points: list[dict[str, object]] = curve["points"]  # type: ignore[assignment]
        for entry in chosen(points):
            print(line(seed, entry))
        print(f"      ended {curve['state']} ({curve['reason']}) after {curve['wall_s'] / 60:.1f} min, "  # type: ignore[operator]
              f"{curve['training_s'] / 60:.1f} of training; {curve['examples']} tasks found\n")  # type: ignore[operator]  # fmt: skip


def chosen(points: list[dict[str, object]]) -> list[dict[str, object]]:
    """The start, about one a minute, and the end."""
    kept: list[dict[str, object]] = []
    for entry in points:
        if not kept or entry is points[-1] or entry["training_s"] - kept[-1]["training_s"] >= 60:  # type: ignore[operator]
            kept.append(entry)
    return kept


def line(seed: int, entry: dict[str, object]) -> str:
    metrics: dict[str, dict[str, float]] = entry["metrics"]  # type: ignore[assignment]
    cells = []
    for task in (*TASKS, "mean"):
        score = metrics[task]
        cells.append(f"{score['accuracy']:.3f} [{score['low']:.2f}, {score['high']:.2f}]")
    worked = "/".join(f"{metrics[task].get('worked_share', 0):.2f}" for task in TASKS)
    sampled = metrics["mean"].get("sampled_accuracy", 0.0)
    proposed: dict[str, float] = entry.get("proposed", {})  # type: ignore[assignment]
    made = f"{proposed['statements']:>10.2f}  {proposed['learnable']:>9.1f}" if proposed else ""
    scores = "  ".join(cells)
    return (
        f"{seed:>4} {entry['step']:>5} {entry['training_s']:>8.0f}  {scores}  {sampled:.3f}  {worked}  {made}".rstrip()
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
