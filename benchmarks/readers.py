"""Readers: what status, explain, report, compare and the first frame of top take of runs with a million steps.

Makes two simulated runs (`large_store`) unless `--of` names a folder with `big` and `other` from an earlier call.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.large_store import large_store
from benchmarks.master import drain

REPEATS = 5
LIMITS = {"status": "0.3 s", "report": "5 s, 5 MB"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks readers", description=__doc__)
    parser.add_argument("--of", type=Path, metavar="FOLDER", help="keep the runs there, and use those that are there")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--cycles", type=int, default=10_000)
    args = parser.parse_args(arguments)
    print(f"reproduce: python -m benchmarks readers {' '.join(arguments)}")
    print(f"{os.getloadavg()[0]:.1f} processes are running on {os.cpu_count()} cores; median of {REPEATS}\n")
    with tempfile.TemporaryDirectory() as folder:
        runs = args.of or Path(folder)
        for name, seed, best in (("big", 0, 0.9), ("other", 1, 0.8)):
            if not (runs / name).exists():
                large_store(runs / name, steps=args.steps, cycles=args.cycles, seed=seed, best=best)
        measure(runs)
    return 0


def measure(runs: Path) -> None:
    print(f"{'command':<28} {'wall':>8} {'CPU':>8}   limit")
    page, pages = runs / "one.html", runs / "two.html"
    for words in (
        ["status", "--run", "big"],
        ["explain", "--run", "big"],
        ["report", "big", "--out", str(page)],
        ["report", "big", "other", "--out", str(pages)],
        ["compare", "big", "other"],
    ):
        tell(
            " ".join(words[:1] + [word for word in words[1:] if word in ("big", "other")]),
            words[0],
            command(words, runs),
        )
    tell("top, to its first frame", "top", lambda: first_frame(runs))
    for name, path in (("report big", page), ("report big other", pages)):
        print(f"{name:<28} {path.stat().st_size / 1e6:>6.2f} MB")


def tell(what: str, name: str, work: Callable[[], None]) -> None:
    walls, cores = [], []
    for _ in range(REPEATS):
        began, used = time.perf_counter(), sum(os.times()[:4])
        work()
        walls.append(time.perf_counter() - began)
        cores.append(sum(os.times()[:4]) - used)
    limit = LIMITS.get(name, "")
    print(f"{what:<28} {statistics.median(walls):>6.2f} s {statistics.median(cores):>6.2f} s   {limit}".rstrip())


def command(words: list[str], runs: Path) -> Callable[[], None]:
    given = [sys.executable, "-m", "orchestrator", *words, "--runs", str(runs)]

    def run() -> None:
        subprocess.run(given, stdout=subprocess.DEVNULL, check=True)

    return run


def first_frame(runs: Path) -> None:
    """Start `top` on a terminal of 160 x 50, wait until the run's name is drawn, and leave it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    given = [sys.executable, "-m", "orchestrator", "top", "--run", "big", "--runs", str(runs)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(given, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, env=environment)
    os.close(slave)
    drawn = b""
    while b"big" not in drawn:
        ready, _, _ = select.select([master], [], [], 60)
        if not ready:
            raise TimeoutError("top drew nothing in a minute")
        drawn += os.read(master, 65536)
    os.write(master, b"q")
    threading.Thread(target=drain, args=(master,), daemon=True).start()
    process.wait()
    os.close(master)
