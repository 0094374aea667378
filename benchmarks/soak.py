"""What grows in a master that runs for very long: memory, descriptors, threads, files, CPU per cycle.

    python -m benchmarks soak                                 20,000 cycles of the fake trainer, then 2 hours of pocket
    python -m benchmarks soak --cycles 6000 --pocket-hours 0  one of them, shorter

Everything but the store is to stay flat; the exit code is 1 if something grows. Cycles of the fake trainer have one
step and start real processes, so the figures are those of the master in a run of as many cycles.

Entries do not count those of cycles that the older back-up of the store does not hold. Back-ups take at most 2 % of the
time, and the larger the store, the more cycles of a third of a second pass between two. Where a cycle takes minutes,
each is backed up.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil

from profiles.errors import LonghaulError
from state.history import WINDOW
from state.layout import RunDir
from state.reader import Reader

LOOK_EVERY_S = 2.0
FEWEST = 4
"""Samples from which growth is judged."""
FAKE = (
    "run.steps_per_cycle=1",
    "run.checkpoint_every=1",
    "fake.step_s=0",
    "validation.examples_per_task=10",
    "stagnation.min_cycles=1000000000",
    "retention.keep_every=0",
    "retention.keep_cycles=100",
)
POCKET = ("run.max_cycles=0", "stagnation.on_plateau=continue", "retention.keep_every=0", "retention.keep_cycles=50")


@dataclass(frozen=True)
class Sample:
    """The master after so many cycles. cpu_s: since its start. entries: of the run's directory, at any depth, without
    cycles newer than the older back-up."""

    cycles: int
    seconds: float
    cpu_s: float
    memory_bytes: int
    descriptors: int
    threads: int
    store_bytes: int
    entries: int


@dataclass(frozen=True)
class Limit:
    """How much the end may exceed the begin: a share of it, and so many more."""

    share: float
    more: float


LIMITS = {
    "memory_bytes": Limit(0.05, 4 << 20),
    "descriptors": Limit(0.0, 4),
    "threads": Limit(0.0, 2),
    "entries": Limit(0.1, 50),
    "cpu_ms": Limit(0.25, 2.0),
}


def cpu_ms(before: Sample, after: Sample) -> float:
    """CPU per cycle between two samples. (pure)"""
    return 1e3 * (after.cpu_s - before.cpu_s) / max(1, after.cycles - before.cycles)


def judged(samples: Sequence[Sample]) -> list[Sample]:
    """Those after the begin of a run. (pure)"""
    return [one for one in samples if one.cycles > WINDOW]


def growing(samples: Sequence[Sample]) -> list[str]:
    """What the last third of a run has more of than its first, in words: medians, as files go in batches. (pure)

    Samples of the first cycles are left out: files are not yet old enough to go, and what a master remembers of a run
    is not yet all there.
    """
    samples = judged(samples)
    if len(samples) < FEWEST:
        return []
    third = max(1, (len(samples) - 1) // 3)
    values = {name: [float(getattr(one, name)) for one in samples[1:]] for name in LIMITS if name != "cpu_ms"}
    values["cpu_ms"] = [cpu_ms(before, after) for before, after in pairwise(samples)]
    ends = {name: (median(some[:third]), median(some[-third:])) for name, some in values.items()}
    return [
        f"{name} grew from {before:,.0f} to {after:,.0f}"
        for name, (before, after) in ends.items()
        if after > before * (1 + LIMITS[name].share) + LIMITS[name].more
    ]


def table(samples: Sequence[Sample]) -> str:
    """A line for each sample but the first, which only begins the first window. (pure)"""
    lines = [
        f"{'cycles':>8}{'s/cycle':>9}{'CPU ms/cycle':>14}{'memory MiB':>12}{'fds':>6}{'threads':>9}"
        f"{'store MB':>10}{'entries':>9}"
    ]
    for before, after in pairwise(samples):
        each = (after.seconds - before.seconds) / max(1, after.cycles - before.cycles)
        lines.append(
            f"{after.cycles:>8}{each:>9.2f}{cpu_ms(before, after):>14.1f}{after.memory_bytes / 2**20:>12.1f}"
            f"{after.descriptors:>6}{after.threads:>9}{after.store_bytes / 1e6:>10.1f}{after.entries:>9}"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    print(f"reproduce: python -m benchmarks soak {' '.join(arguments)}\n", flush=True)
    found: dict[str, list[Sample]] = {}
    with tempfile.TemporaryDirectory(prefix="longhaul-soak-") as folder:
        if args.cycles:
            knobs: tuple[str, ...] = (*FAKE, f"run.max_cycles={args.cycles}")
            found["fake"] = list(soak("fake", knobs, Path(folder), args.every))
        if args.pocket_hours:
            knobs = (*POCKET, f"run.max_hours={args.pocket_hours}")
            found["pocket"] = list(soak("pocket", knobs, Path(folder), args.pocket_every))
    grown = []
    for name, samples in found.items():
        print(f"== {name}\n{table(samples)}")
        grown += [f"{name}: {line}" for line in growing(samples)]
        if len(judged(samples)) < FEWEST:
            grown.append(f"{name}: too short to tell what grows")
    print("\n".join(["", *grown] if grown else ["", "nothing but the store grows"]))
    if args.json:
        args.json.write_text(json.dumps({name: [asdict(one) for one in some] for name, some in found.items()}) + "\n")
    return int(bool(grown))


def parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("python -m benchmarks soak", description=__doc__, formatter_class=plain)
    made.add_argument("--cycles", type=int, default=20_000, metavar="N", help="of the fake trainer (%(default)s)")
    made.add_argument("--every", type=int, default=1000, metavar="N", help="cycles between two lines (%(default)s)")
    made.add_argument("--pocket-hours", type=float, default=2.0, metavar="H", help="of pocket (%(default)s; 0: none)")
    made.add_argument("--pocket-every", type=int, default=5, metavar="N", help="its cycles for a line (%(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return made


def soak(profile: str, knobs: Sequence[str], folder: Path, every: int) -> Iterator[Sample]:
    """Run a master to its end; a sample after its first cycle, then one after each `every` of them."""
    run = RunDir(folder / profile)
    command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", profile, "--run", profile]
    command += ["--runs", str(folder), *(word for knob in knobs for word in ("--set", knob))]
    with (folder / f"{profile}.out").open("wb") as out:
        master = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    began, due = time.monotonic(), 1
    try:
        while master.poll() is None:
            done = cycles_done(run)
            if done >= due:
                try:
                    yield sample(run, master, done, time.monotonic() - began)
                except psutil.Error:
                    break
                due = done + every
                print(f"{profile}: {done} cycles, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            time.sleep(LOOK_EVERY_S)
    finally:
        if master.poll() is None:
            master.send_signal(signal.SIGINT)
        master.wait()


def cycles_done(run: RunDir) -> int:
    try:
        with closing(Reader.open(run)) as reader:
            return reader.history().cycles_done
    except (LonghaulError, OSError, IndexError):
        return 0  # the store is not there yet


def sample(run: RunDir, master: psutil.Process, cycles: int, seconds: float) -> Sample:
    times = master.cpu_times()
    return Sample(
        cycles,
        seconds,
        times.user + times.system,
        master.memory_info().rss,
        master.num_fds(),
        master.num_threads(),
        sum(path.stat().st_size for path in (run.store, *run.store_companions) if path.exists()),
        sum(len(folders) + len(files) for _, folders, files in os.walk(run.root)) - entries_of_new_cycles(run),
    )


def entries_of_new_cycles(run: RunDir) -> int:
    """Of the folders of cycles, those that the older back-up of the store does not hold."""
    held = min((int(path.stem.removeprefix("cycle-")) for path in run.backups.glob("cycle-*.db")), default=0)
    new = [path for path in run.cycles.glob("[0-9]*") if int(path.name) > held]
    return len(new) + sum(len(folders) + len(files) for path in new for _, folders, files in os.walk(path))
