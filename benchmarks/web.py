"""Web page: how soon a run of a million steps is seen in Chromium, what it weighs, and what serving it costs.

The run is made of rows alone (`large_store`). Each opening has a server of its own, which has read nothing yet.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.large_store import large_store
from orchestrator.web.app import PAGE, TYPES
from state.layout import RunDir
from tests import browser
from tests.browser import Browser
from tests.builders import build_store
from tests.orchestrator.web.served import Served, served

REPEATS = 5
DRAWN = (
    "document.querySelector('.two .chart .plot path.line') && document.querySelectorAll('.sentences li').length > 2"
    " && document.querySelectorAll('.two .plot path.line').length > 2"
)
"""The overview's two curves and its sentences are there."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks web", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--of", type=Path, metavar="RUN_DIR", help="an earlier run of `large_store`")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch an open page (20)")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(args.of) if args.of else large_store(Path(folder) / "runs" / "long", steps=args.steps)
        print(f"reproduce: python -m benchmarks web {' '.join(arguments)}\n")
        print(f"{os.getloadavg()[0]:.1f} processes are running on {os.cpu_count()} cores\n")
        print(f"{'figure':<58} {'measured':>12}   limit")
        weigh()
        short = build_store(Path(folder) / "short" / "short", cycles=10, steps=200)
        small = statistics.median(opened(short) for _ in range(REPEATS))
        openings = [opened(run) for _ in range(REPEATS)]
        tell(f"median of {REPEATS}: link to curves of 200 steps", small, "")
        tell(f"median of {REPEATS}: link to curves of {args.steps:,} steps", statistics.median(openings), "1 s")
        tell("slowest of them", max(openings), "")
        watch(run, args.seconds)
    return 0


def tell(what: str, seconds: float, limit: str) -> None:
    print(f"{what:<58} {seconds:>10.3f} s   {limit}")


def weigh() -> None:
    """Everything that a browser loads before the first data."""
    files = [path.read_bytes() for path in PAGE.iterdir() if path.suffix in TYPES]
    whole, packed = sum(map(len, files)), sum(len(gzip.compress(one, 5)) for one in files)
    print(f"{'page before data, all files':<58} {whole / 1000:>9.1f} kB   150 kB")
    print(f"{'the same as sent, compressed':<58} {packed / 1000:>9.1f} kB")


def opened(run: RunDir) -> float:
    """Seconds from typing the link to the drawn overview, by a server and a browser that have only just started."""
    with served(run.root.parent, "--run", run.name) as page, browser.started() as chromium:
        chromium.size(1400, 900)
        chromium.open("about:blank")
        return seen(chromium, page)


def seen(chromium: Browser, page: Served) -> float:
    began = time.perf_counter()
    chromium.open(page.url)
    chromium.wait(DRAWN)
    return time.perf_counter() - began


def watch(run: RunDir, seconds: float) -> None:
    """Answers and cost of the server while a page is open."""
    with served(run.root.parent, "--run", run.name) as page, browser.started() as chromium:
        chromium.size(1400, 900)
        seen(chromium, page)
        began = time.perf_counter()
        names = [one["name"] for one in page.ask("run", run=run.name).json["metrics"]][:40]
        waits = []
        while True:
            asked = time.perf_counter()
            found = page.ask("series", run=run.name, metrics=",".join(names)).json
            waits.append(time.perf_counter() - asked)
            if found["read"] >= 1.0:
                break
            time.sleep(0.2)
        tell("until every step was read for its spikes", time.perf_counter() - began, "")
        tell(f"series of {len(names)} metrics meanwhile, median", statistics.median(waits), "")
        tell("slowest of them", max(waits), "1 s")
        process = psutil.Process(page.process.pid)
        used, at = sum(process.cpu_times()[:2]), time.perf_counter()
        time.sleep(seconds)
        share = (sum(process.cpu_times()[:2]) - used) / (time.perf_counter() - at)
        print(f"{'server while the page is watched: share of one core':<58} {share:>10.2%}")
        print(f"{'server: resident memory':<58} {process.memory_info().rss / 1e6:>9.1f} MB")
