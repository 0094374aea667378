"""Master: start-up, status and history of a run with a million steps, and memory and CPU of the dashboard.

The run is simulated by inserting its rows in bulk. The dashboard is measured on a pseudo-terminal with a reader and a
finished step every second: read the store, build the view, draw, as the loop does.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from state.layout import RunDir
from state.reader import Reader
from tests.builders import build_store

REPEATS = 7


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks master", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure the dashboard (30)")
    parser.add_argument("--of", type=Path, metavar="RUN_DIR", help="reuse an earlier simulated run")
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.draw:
        draw(args.draw, args.seconds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(args.of) if args.of else build_store(Path(folder) / "long", cycles=args.cycles, steps=args.steps)
        print(f"reproduce: python -m benchmarks master {' '.join(arguments)}\n")
        busy = f"{os.getloadavg()[0]:.1f} processes are running on {os.cpu_count()} cores"
        print(f"median of {REPEATS}; {busy}")
        print(f"{'figure':<52} {'measured':>12}   limit")
        tell("--help", command(["--help"]), "0.2 s")
        named = ["--runs", str(run.root.parent), "--run", run.name]
        tell(f"status of {args.cycles:,} cycles and {args.steps:,} steps", command(["status", *named]), "0.3 s")
        tell("the same with --json", command(["status", *named, "--json"]), "0.3 s")
        tell("resume: read history, steps, validations", cost_of(lambda: resume(run)), "1 s")
        for columns, lines in ((80, 24), (200, 60)):
            share, rss, redraw_s = watch(run, args.seconds, columns, lines)
            print(f"{f'dashboard at {columns} x {lines}: share of one core':<52} {share:>10.2%}     0.5 %")
            print(f"{f'dashboard at {columns} x {lines}: a redraw, of a core':<52} {redraw_s * 1000:>9.1f} ms    10 ms")
            print(f"{f'dashboard at {columns} x {lines}: resident memory':<52} {rss / 1e6:>9.1f} MB    60 MB")
    return 0


@dataclass(frozen=True)
class Cost:
    """Median wall seconds and CPU seconds of some work; other processes affect CPU seconds less."""

    wall_s: float
    cpu_s: float


def tell(what: str, cost: Cost, limit: str) -> None:
    print(f"{what:<52} {cost.wall_s:>10.3f} s   {limit}   (of a core: {cost.cpu_s:.3f} s)")


def cost_of(work: Callable[[], object]) -> Cost:
    walls, cores = [], []
    for _ in range(REPEATS):
        began, used = time.perf_counter(), cpu_seconds()
        work()
        walls.append(time.perf_counter() - began)
        cores.append(cpu_seconds() - used)
    return Cost(statistics.median(walls), statistics.median(cores))


def cpu_seconds() -> float:
    """CPU time of this process and its ended children."""
    return sum(os.times()[:4])


def command(arguments: list[str]) -> Cost:
    """Cost of the command, including interpreter start."""
    given = [sys.executable, "-m", "orchestrator", *arguments]
    return cost_of(lambda: subprocess.run(given, stdout=subprocess.DEVNULL, check=True))


def resume(run: RunDir) -> None:
    reader = Reader.open(run)
    reader.history()
    reader.steps(400)
    reader.validations(400)
    reader.close()


# --- the dashboard -----------------------------------------------------------------------------------------------


def watch(run: RunDir, seconds: float, columns: int, lines: int) -> tuple[float, int, float]:
    """(share of one core, resident bytes, CPU seconds of a redraw) of a process that displays `run`, after start-up."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    given = [sys.executable, "-m", "benchmarks", "master", "--draw", str(run.root), "--seconds", str(seconds)]
    process = subprocess.Popen(
        given,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )
    os.close(slave)
    threading.Thread(target=drain, args=(master,), daemon=True).start()
    _, told = process.communicate()
    os.close(master)
    share, rss, redraw_s = told.split()[-3:]
    return float(share), int(rss), float(redraw_s)


def drain(fd: int) -> None:
    try:
        while os.read(fd, 65536):
            pass
    except OSError:
        return


def draw(root: Path, seconds: float) -> None:
    """The child: what the loop does between two commits. The first two seconds are start-up and do not count."""
    import psutil
    from rich.console import Console

    import state.database  # noqa: F401  (the master has it loaded: it counts as memory)
    from orchestrator.display.dashboard import Dashboard
    from orchestrator.display.view import Memory, build_view
    from tests.builders import a_live, a_profile, step_facts

    reader = Reader.open(RunDir(root))
    history, steps, validations = reader.history(), list(reader.steps(400)), reader.validations(400)
    events, last = reader.events(), steps[-1].step
    dashboard, profile, memory = Dashboard(Console()), a_profile(), Memory()
    process, began, counted = psutil.Process(), time.monotonic(), (0.0, 0.0)
    redraws: list[float] = []
    for turn in range(int((seconds + 2) * 2)):  # the loop turns twice a second, more often when workers speak
        now = time.monotonic()
        if turn % 2 == 0:
            steps.append(step_facts(last + turn))
            del steps[:-400]
        live = a_live(step=last + turn, step_started=now - 0.5 * (turn % 2), now=now)
        begun = time.process_time()
        dashboard.update(build_view(history, live, steps, validations, events, profile, memory=memory))
        redraws += [time.process_time() - begun] if turn % 2 == 0 and turn > 3 else []  # those after a step
        if turn == 3:
            counted = time.monotonic(), sum(process.cpu_times()[:2])
        time.sleep(max(0.0, began + (turn + 1) * 0.5 - time.monotonic()))
    share = (sum(process.cpu_times()[:2]) - counted[1]) / (time.monotonic() - counted[0])
    rss = process.memory_info().rss
    dashboard.close("")
    sys.stderr.write(f"{share} {rss} {statistics.median(redraws)}\n")
