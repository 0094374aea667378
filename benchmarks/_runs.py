"""Runs the real daemon several times in parallel, each on its own CPUs, and reads the curves."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import LonghaulError
from state.history import StepFacts
from state.layout import RunDir
from state.reader import Reader


@dataclass(frozen=True)
class Job:
    """One run. settings: `KEY=VALUE`, as for `run --set`."""

    name: str
    profile: str
    settings: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser, minutes: float) -> None:
    """Options of every benchmark of learning."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=minutes, help=f"training minutes of each run ({minutes:g})")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--cpus", default="", help="CPUs of a run, as in 0,1; for parallel runs: 0,1:2,3")
    parser.add_argument("--parallel", type=int, default=1, help="number of parallel runs, on two CPUs each (1)")
    parser.add_argument("--runs", type=Path, help="keep the runs in this folder")
    parser.add_argument("--json", type=Path, help="also write all curves to this file, and the table to FILE.txt")


def lanes_of(args: argparse.Namespace) -> list[list[int]]:
    """The CPUs of each parallel run. Exits if there are too few."""
    if args.cpus:
        return [[int(cpu) for cpu in lane.split(",")] for lane in args.cpus.split(":")]
    free = sorted(os.sched_getaffinity(0))
    lanes = [free[2 * n : 2 * n + 2] for n in range(args.parallel)]
    if not all(len(lane) == 2 for lane in lanes) and args.parallel > 1:
        raise SystemExit(f"--parallel {args.parallel} needs {2 * args.parallel} CPUs; there are {len(free)}")
    return lanes


def run_all(jobs: Sequence[Job], lanes: Sequence[list[int]], minutes: float, root: Path) -> dict[str, dict[str, Any]]:
    """name -> curve. Runs wait for a free lane; their output goes to NAME.log."""
    waiting, curves = list(jobs), {}
    running: dict[int, tuple[Job, subprocess.Popen[bytes]]] = {}
    while waiting or running:
        while waiting and len(running) < len(lanes):
            lane = next(n for n in range(len(lanes)) if n not in running)
            job = waiting.pop(0)
            running[lane] = (job, _start(job, root, minutes, lanes[lane]))
        time.sleep(0.5)
        for lane, (job, process) in list(running.items()):
            if process.poll() is not None:
                curves[job.name] = curve_or_why_not(root, job)
                print(f"{job.name}: {curves[job.name]['state']}", file=sys.stderr, flush=True)
                del running[lane]
    return curves


def _start(job: Job, root: Path, minutes: float, cpus: list[int]) -> subprocess.Popen[bytes]:
    root.mkdir(parents=True, exist_ok=True)
    settings = [f"run.max_hours={minutes / 60}", f"run.threads={len(cpus)}", *job.settings]
    with (root / f"{job.name}.log").open("wb") as log:
        return subprocess.Popen(
            command_of(job, root, settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )


def command_of(job: Job, root: Path, settings: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", job.profile, "--run", job.name]
    return [*command, "--runs", str(root), *(word for setting in settings for word in ("--set", setting))]


def run_to_its_end(job: Job) -> Path:
    """The directory of a new run, which is left in the folder for temporary files. Exits with its words if it fails."""
    root = Path(tempfile.mkdtemp(prefix=f"longhaul-{job.name}-"))
    done = subprocess.run(
        command_of(job, root, job.settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"the run ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return root / job.name


def curve_or_why_not(root: Path, job: Job) -> dict[str, Any]:
    """The curve of a run, or why there is none, so that a failed run does not lose the others' curves."""
    try:
        return read_curve(root / job.name)
    except LonghaulError:
        said = (root / f"{job.name}.log").read_text(errors="replace").strip().splitlines()
        return {
            "points": [],
            "state": "not started",
            "reason": " ".join(said[-3:]),
            "wall_s": 0.0,
            "training_s": 0.0,
            "examples": 0,
        }


def read_curve(directory: Path) -> dict[str, Any]:
    """The run's validations, with the training time before each, and how it ended."""
    reader = Reader.open(RunDir(directory))
    try:
        history = reader.history()
        steps = reader.steps(1_000_000)
        seconds = _training_seconds(steps)
        points = [
            {
                "step": one.step,
                "training_s": seconds.get(one.step, 0.0),
                "metrics": one.metrics,
                "before": _before(one.step, steps),
            }
            for one in reader.validations(100_000)
        ]
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


def _training_seconds(steps: Sequence[StepFacts]) -> dict[int, float]:
    total, at = 0.0, {0: 0.0}
    for step in steps:
        total += step.seconds
        at[step.step] = total
    return at


def _before(at: int, steps: Sequence[StepFacts]) -> dict[str, float]:
    """Means of the metrics over the 20 steps before `at`, each over the steps that report it."""
    found: dict[str, list[float]] = {}
    for step in steps:
        if at - 20 < step.step <= at:
            for name, value in step.metrics.items():
                found.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) for name, values in found.items()}


def chosen(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The start, about one point per minute, and the end."""
    kept: list[Mapping[str, Any]] = []
    for entry in points:
        if not kept or entry is points[-1] or entry["training_s"] - kept[-1]["training_s"] >= 60:
            kept.append(entry)
    return kept
