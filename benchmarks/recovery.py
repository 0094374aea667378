"""How long nothing trains after kill -9: from the kill of a worker or of the master to the begin of the next step.

    python -m benchmarks recovery                        fake and pocket
    python -m benchmarks recovery --profiles fake --kills 20 --set retry.backoff_s=0.1

A killed master is started again at once, as a service manager does. Below the figures stands what no program can go
below: the start of an interpreter, and of one that imports what the worker of that profile needs.
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
from contextlib import contextmanager
from pathlib import Path

import msgspec

from state import event_kinds
from state.layout import RunDir
from workers.contract import Event

LONG = ("run.max_cycles=1000", "run.steps_per_cycle=200", "retention.keep_every=0")
SETTINGS = {
    "fake": (*LONG, "fake.step_s=0.05"),
    "pocket": LONG,
}
IMPORTS = {
    "fake": "import workers.__main__",
    "pocket": "from workers import kinds; kinds.worker_kind_named('azr').warm_up()",
}
PATIENCE_S = 300.0
_events = msgspec.json.Decoder(Event)


def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    print(f"reproduce: python -m benchmarks recovery {' '.join(arguments)}\n")
    print(f"{'profile':<10} {'killed':<8} {'kills':>5} {'median':>8} {'slowest':>8}")
    for profile in args.profiles:
        for whom in ("worker", "master"):
            found = list(gaps(profile, whom, args.kills, args.overrides))
            print(
                f"{profile:<10} {whom:<8} {len(found):>5} {statistics.median(found):>6.2f} s {max(found):>6.2f} s",
                flush=True,
            )
        print(f"{'':<10} {'floor: an interpreter starts':<33} {seconds_of('pass'):.2f} s")
        print(f"{'':<10} {'floor: and imports for a worker':<33} {seconds_of(IMPORTS[profile]):.2f} s", flush=True)
    return 0


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


def seconds_of(code: str) -> float:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def gaps(profile: str, whom: str, kills: int, overrides: list[str]) -> Iterator[float]:
    """Seconds from each kill to the begin of the next step. Kills come at random moments of a step."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="longhaul-recovery-") as folder:
        run = RunDir(Path(folder) / "killed")
        command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", profile]
        command += ["--run", run.name, "--runs", folder]
        command += [word for one in (*SETTINGS[profile], *overrides) for word in ("--set", one)]
        with started(command) as masters:
            for _ in range(kills):
                wait_for_step(run, time.time())
                wait_for_step(run, time.time())
                time.sleep(draw.random() * 0.3)
                killed = masters[-1].pid if whom == "master" else worker_of(masters[-1].pid)
                at = time.time()
                os.kill(killed, signal.SIGKILL)
                if whom == "master":
                    masters[-1].wait()
                    masters.append(launch(command))
                yield wait_for_step(run, at) - at


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


def worker_of(master: int) -> int:
    """The pid of the worker that trains: it has the newest heartbeat file's attempt. A warm one is left alone."""
    children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    return min(map(int, children))


def wait_for_step(run: RunDir, after: float) -> float:
    """UTC seconds at which the first step began that began after that moment."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for path in sorted(run.cycles.glob("*/attempt-*/events.jsonl"), key=lambda one: one.stat().st_mtime)[-2:]:
            for line in path.read_bytes().splitlines():
                if b'"step"' not in line:
                    continue
                try:
                    event = _events.decode(line)
                except msgspec.DecodeError:
                    continue
                if event.type == event_kinds.STEP.name:
                    began = event.t_wall - float(event.data.get("seconds", 0.0))
                    if began > after:
                        return began
        time.sleep(0.01)
    raise TimeoutError(f"no step within {PATIENCE_S:.0f} s")
