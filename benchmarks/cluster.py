"""What a cluster adds to a run: seconds to submit, to notice an end, to take a job up again, to save on request.

Runs the profile `fake` on the Slurm (SLURM_CONF) or the Ray (RAY_API_SERVER_ADDRESS) of this environment, so that only
the way there and back is measured.
The attempts' directory must be on a file system of this host: times of files are compared with this host's clock.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from state.layout import RunDir

PATIENCE_S = 300.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cluster", description=__doc__)
    parser.add_argument("--launcher", choices=("slurm", "ray"), default="slurm")
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--poll", type=float, default=10.0, help="launch.poll_s")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds over which the master's CPU is measured")
    parser.add_argument("--crash", metavar="COMMAND", help="kills the node of a job, which replaces {} in it")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override one knob")
    args = parser.parse_args(arguments)
    print(f"reproduce: python -m benchmarks cluster {' '.join(arguments)}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="longhaul-cluster-") as folder:
        ends = hand_overs(args, Path(folder))
        print_seconds("a job's end to the next submission", ends)
        measure_one_job(args, Path(folder))
        if args.crash:
            print(f"death of a node to the next step elsewhere: {after_a_crash(args, Path(folder)):.1f} s")
    return 0


def print_seconds(what: str, seconds: list[float]) -> None:
    print(f"{what}: median {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s, n {len(seconds)}", flush=True)


class Watched:
    """A master whose lines are kept with the moment at which each came."""

    def __init__(self, args: argparse.Namespace, folder: Path, name: str, *more: str) -> None:
        sets = [
            f"launch.launcher={args.launcher}",
            "launch.cpus_per_node=1",
            f"launch.poll_s={args.poll}",
            *args.set,
            *more,
        ]
        command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", "fake", "--run", name]
        command += ["--runs", str(folder), *(part for one in sets for part in ("--set", one))]
        self.run = RunDir(folder / name)
        self.began = time.time()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.time(), line))

    def moment(self, part: str) -> float:
        """UTC seconds at which the first line with `part` came."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := [at for at, line in list(self.lines) if part in line]:
                return found[0]
            assert self.process.poll() is None, "".join(line for _, line in self.lines)
            time.sleep(0.002)
        raise TimeoutError(part)


def hand_overs(args: argparse.Namespace, folder: Path) -> list[float]:
    """Seconds from the moment at which a job script has written its exit code to the next job in the queue."""
    master = Watched(args, folder, "cycles", f"run.max_cycles={args.cycles}")
    master.process.wait(PATIENCE_S * args.cycles)
    submitted = [at for at, line in master.lines if "(job " in line]
    ends = sorted(path.stat().st_mtime for path in master.run.cycles.glob("*/*/job.exit"))
    return [next(at for at in submitted if at > end) - end for end in ends[:-1]]


def measure_one_job(args: argparse.Namespace, folder: Path) -> None:
    """Of one long job: its submission, a checkpoint on request, the master's CPU, and a new master that takes it up."""
    long = ("fake.step_s=1", "run.steps_per_cycle=600", "run.checkpoint_every=600", "run.max_cycles=1")
    master = Watched(args, folder, "long", *long)
    queued = master.moment("cycle 1: train attempt 1 from")
    running = master.moment("step 1 · ") - 1.0
    print(f"in the queue to the first step: {running - queued:.2f} s")
    asked = time.monotonic()
    command = [sys.executable, "-m", "orchestrator", "checkpoint", "--run", "long", "--runs", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"request to checkpoint, steps of 1 s: {time.monotonic() - asked:.2f} s")
    process = psutil.Process(master.process.pid)
    before, began = cpu_of(process), time.monotonic()
    time.sleep(args.idle)
    used, over = cpu_of(process) - before, time.monotonic() - began
    print(f"CPU of the master, one question in {args.poll:g} s: {100 * used / over:.2f} % of a core")
    master.process.send_signal(signal.SIGKILL)
    master.process.wait()
    second = Watched(args, folder, "long", *long)
    print(f"start of a new master to a job taken up: {second.moment('goes on (job ') - second.began:.2f} s")
    second.process.send_signal(signal.SIGINT)
    second.process.wait(PATIENCE_S)


def after_a_crash(args: argparse.Namespace, folder: Path) -> float:
    """Seconds from the death of the only node of a job to the end of the next step of 1 s."""
    long = ("fake.step_s=1", "run.steps_per_cycle=600", "run.checkpoint_every=600", "run.max_cycles=1")
    master = Watched(args, folder, "crash", *long)
    master.moment("step 1 · ")
    begun = next(line for _, line in master.lines if "cycle 1: train attempt 1 from" in line)
    job = begun.split("(job ")[1].split(")")[0]
    answer = subprocess.run(["squeue", "-h", "-j", job, "-o", "%N"], check=True, capture_output=True, text=True)
    subprocess.run(shlex.split(args.crash.format(answer.stdout.strip())), check=True)
    died, before = time.monotonic(), steps_of(master.run)
    while steps_of(master.run) == before:
        assert master.process.poll() is None, "".join(line for _, line in master.lines)
        time.sleep(0.05)
    took = time.monotonic() - died
    master.process.send_signal(signal.SIGINT)
    master.process.wait(PATIENCE_S)
    return took


def steps_of(run: RunDir) -> int:
    """Steps that workers have done in the first cycle, again or for the first time."""
    return sum(path.read_text().count('"type":"step"') for path in run.cycle(1).glob("*/events.jsonl"))


def cpu_of(process: psutil.Process) -> float:
    """Seconds that a process and the children that it has waited for have used."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
