"""How long nothing trains after kill -9: from the kill of a worker or of the master to the begin of the next step.

    python -m benchmarks recovery                        fake and pocket
    python -m benchmarks recovery --profiles fake --kills 20 --set retry.backoff_s=0.1

A killed master is started again at once. The next step is the first that begins after the kill; it may repeat one that
was not saved. It begins when everything is imported, the checkpoint read and verified, the model built and probed, and
the trainer is about to draw rollouts. The last columns say when its worker was started, when that began to load, and
when the step ended. All are seconds after the kill, medians of all kills; a worker that was warm before counts as 0.

Below the figures stands what no program can go below: the start of an interpreter, and of one that imports what the
worker of that profile needs. On a busy machine compare the seconds of a core that they take.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.alive import worker_pid
from state import event_kinds
from state.layout import RunDir
from state.reader import Reader
from workers.contract import Event

LONG = ("run.max_cycles=1000", "run.steps_per_cycle=200", "retention.keep_every=0")
SETTINGS = {
    "fake": (*LONG, "fake.step_s=0.05"),
    "pocket": (*LONG, "run.checkpoint_every=2"),  # five kills without a new checkpoint would end the run
}
IMPORTS = {
    "fake": "import workers.__main__",
    "pocket": """
from workers import kinds, process
with process.importing():
    kinds.worker_kind_named('azr').warm_up()
""",
}
PATIENCE_S = 300.0
_events = msgspec.json.Decoder(Event)


@dataclass(frozen=True)
class Gap:
    """Seconds from a kill to what follows it."""

    worker_starts: float
    loading_begins: float
    step_begins: float
    step_ends: float


def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    print(f"reproduce: python -m benchmarks recovery {' '.join(arguments)}\n")
    print(f"{'':<25} {'the next step begins':^17} {'worker':>8} {'loading':>8} {'step':>8}")
    print(f"{'profile':<10} {'killed':<8} {'kills':>5} ", end="")
    print("".join(f"{name:>8} " for name in ("median", "slowest", "starts", "begins", "ends")))
    for profile in args.profiles:
        for whom in ("worker", "master"):
            print(row(profile, whom, list(gaps(profile, whom, args.kills, args.overrides))), flush=True)
        for what, code in (("an interpreter starts", "pass"), ("and imports for a worker", IMPORTS[profile])):
            wall_s, core_s = seconds_of(code)
            print(f"{'':<10} floor: {what:<25} {wall_s:.2f} s, {core_s:.2f} s of a core", flush=True)
    return 0


def row(profile: str, whom: str, found: list[Gap]) -> str:
    begins = [one.step_begins for one in found]
    parts = [[max(0.0, one.worker_starts), max(0.0, one.loading_begins), one.step_ends] for one in found]
    figures = [statistics.median(begins), max(begins), *map(statistics.median, zip(*parts, strict=True))]
    return f"{profile:<10} {whom:<8} {len(found):>5} " + "".join(f"{one:>6.2f} s " for one in figures)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks recovery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--profiles", nargs="+", choices=sorted(SETTINGS), default=sorted(SETTINGS))
    made.add_argument("--kills", type=int, default=10, metavar="N", help="of each kind (%(default)s)")
    made.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    return made


def seconds_of(code: str) -> tuple[float, float]:
    """Seconds, and seconds of a core, that a program takes: medians of five."""
    took, of_a_core = [], []
    for _ in range(5):
        began, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        after = os.times()
        took.append(time.perf_counter() - began)
        of_a_core.append(sum(after[2:4]) - sum(before[2:4]))
    return statistics.median(took), statistics.median(of_a_core)


def gaps(profile: str, whom: str, kills: int, overrides: list[str]) -> Iterator[Gap]:
    """What followed each kill. Kills come at random moments of a step."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="longhaul-recovery-") as folder:
        run = RunDir(Path(folder) / "killed")
        command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", profile]
        command += ["--run", run.name, "--runs", folder]
        command += [word for one in (*SETTINGS[profile], *overrides) for word in ("--set", one)]
        with started(command) as masters:
            for _ in range(kills):
                for _ in range(3):  # a worker is warm soon after the first, and a checkpoint is among them
                    wait_for_step(run, time.time(), masters[-1])
                time.sleep(draw.random() * 0.3)
                killed = masters[-1].pid if whom == "master" else trainer_of(run, masters[-1].pid)
                at = time.time()
                os.kill(killed, signal.SIGKILL)
                if whom == "master":
                    masters[-1].wait()
                    masters.append(launch(command))
                yield wait_for_step(run, at, masters[-1])


def launch(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@contextmanager
def started(command: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    masters = [launch(command)]
    try:
        yield masters
    finally:
        masters[-1].send_signal(signal.SIGTERM)
        masters[-1].send_signal(signal.SIGTERM)
        masters[-1].wait()


def trainer_of(run: RunDir, master: int) -> int:
    """The pid of the worker that trains. A warm one has no attempt yet."""
    reader = Reader.open(run)
    try:
        pid = worker_pid(reader.open_attempts(), master)
    finally:
        reader.close()
    assert pid is not None
    return pid


def wait_for_step(run: RunDir, after: float, master: subprocess.Popen[bytes]) -> Gap:
    """The first step that begins after that moment (UTC seconds), once it has ended."""
    until = time.monotonic() + PATIENCE_S
    seen: dict[Path, int] = {}
    while time.monotonic() < until:
        for path in run.cycles.glob("*/attempt-*/events.jsonl"):
            if path.stat().st_mtime < after or path.stat().st_size == seen.get(path):
                continue
            seen[path] = path.stat().st_size
            loading_begins = 0.0
            for event in events_in(path):
                if event.type == event_kinds.STARTED.name:
                    loading_begins = event.t_wall
                elif event.type == event_kinds.STEP.name:
                    step_begins = event.t_wall - float(event.data.get("seconds", 0.0))
                    if step_begins > after:
                        times = (worker_started(run, path), loading_begins, step_begins, event.t_wall)
                        return Gap(*(one - after for one in times))
        assert master.poll() is None, f"the master ended with {master.returncode}"
        time.sleep(0.02)
    raise TimeoutError(f"no step within {PATIENCE_S:.0f} s")


def events_in(path: Path) -> Iterator[Event]:
    for line in path.read_bytes().splitlines():
        if b'"step"' in line or b'"started"' in line:
            with suppress(msgspec.DecodeError):  # the last one may be half written
                yield _events.decode(line)


def worker_started(run: RunDir, events: Path) -> float:
    """When the worker of a running attempt was started, to the file's precision. UTC seconds."""
    token = msgspec.json.decode((events.parent / "spec.json").read_bytes())["token"]
    return run.worker(token).stat().st_mtime  # /proc has the start of a process only to the second of the boot
