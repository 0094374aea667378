"""Cost of running a program: the sandbox compared with `multiprocessing` and with one `subprocess` per program.

    python -m benchmarks sandbox                      the table
    python -m benchmarks sandbox --soak 1000000       memory, processes and descriptors over many programs
    LONGHAUL_DATA=folder python -m benchmarks sandbox --cruxeval 5     800 published functions, five times

CPU is user and system time of this process and all its descendants, without start and end of the pools. It is the main
figure, because programs per second depend on the machine's other load.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.sandbox import Case, Limits, Sandbox
from workers.sandbox.limits import LAYERS
from workers.sandbox.literal import Rejected, parse_arguments, same_value

PROGRAMS = (
    ("def f(x):\n    return sorted(x)", "[3, 1, 2]"),
    ("def f(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a", "30"),
    ("def f(text):\n    return {c: text.count(c) for c in text if c.isalpha()}", "'hello world'"),
    ("import math\ndef f(x, y):\n    return [math.gcd(x, y), x * y // math.gcd(x, y)]", "84, 36"),
)
"""Short programs, as models write them, so that the overhead dominates."""


@dataclass(frozen=True)
class Measure:
    """One way to run programs, measured once."""

    cases: int
    programs: int
    wall_s: float
    cpu_s: float


def cpu_now() -> float:
    """CPU seconds of this process and of its reaped descendants."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def measure(work: Callable[[int], float], programs: int, cases_each: int = 1) -> Measure:
    """`work(n)` starts, runs n programs, ends, and returns the seconds of the middle part."""
    before = cpu_now()
    work(0)
    empty = cpu_now() - before
    before = cpu_now()
    wall = work(programs)
    return Measure(programs * cases_each, programs, wall, cpu_now() - before - empty)


def chosen(count: int) -> list[tuple[str, str]]:
    return [PROGRAMS[place % len(PROGRAMS)] for place in range(count)]


def by_subprocess(count: int) -> float:
    """A new Python process for each program."""
    began = time.perf_counter()
    for program, text in chosen(count):
        code = f"{program}\nprint(repr(f({text})))"
        subprocess.run([sys.executable, "-S", "-c", code], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def call_unprotected(program: str, text: str) -> str:
    """Run a program without protection. Only for this file's own programs."""
    scope: dict[str, Any] = {}
    exec(f"{program}\nresult = f({text})", scope)  # noqa: S102  the baseline; its programs are the ones above
    return repr(scope["result"])


def by_multiprocessing(jobs: int, fresh: bool) -> Callable[[int], float]:
    """`multiprocessing.Pool` with fork, without any protection. fresh: one process per program."""

    def work(count: int) -> float:
        context = multiprocessing.get_context("fork")
        with context.Pool(jobs, maxtasksperchild=1 if fresh else None) as pool:
            began = time.perf_counter()
            pool.starmap(call_unprotected, chosen(count), chunksize=1)
            wall = time.perf_counter() - began
            pool.close()
            pool.join()
        return wall

    return work


def by_sandbox(jobs: int, inputs: int = 1, without: Sequence[str] = ()) -> Callable[[int], float]:
    """The sandbox, with `inputs` calls per program."""

    def work(count: int) -> float:
        cases = [Case(program, (text,) * inputs) for program, text in chosen(count)]
        with Sandbox(Limits(without=tuple(without), allow_weak=True), jobs=jobs) as sandbox:
            began = time.perf_counter()
            results = sandbox.execute_many(cases)
            wall = time.perf_counter() - began
        failed = [result for found in results for result in found if result.value is None]
        assert not failed, failed[0]
        return wall

    return work


def table(jobs: int, scale: float, repeats: int) -> None:
    """Measure every way `repeats` times in turn, so that a slow minute affects all of them."""
    ways: list[tuple[str, Callable[[int], float], int, int]] = [
        ("`subprocess` each, serial", by_subprocess, 50, 1),
        ("`multiprocessing`, one process each", by_multiprocessing(jobs, fresh=True), 1000, 1),
        ("`multiprocessing`, processes reused", by_multiprocessing(jobs, fresh=False), 4000, 1),
        ("sandbox without layers, one process each", by_sandbox(jobs, without=LAYERS), 2000, 1),
        ("**sandbox, all layers, one process each**", by_sandbox(jobs), 2000, 1),
        ("**sandbox, all layers, batch of 8**", by_sandbox(jobs, inputs=8), 1000, 8),
        ("sandbox, all layers, batch of 16", by_sandbox(jobs, inputs=16), 1000, 16),
    ]
    found: dict[str, list[Measure]] = {name: [] for name, *_ in ways}
    loads = []
    for _ in range(repeats):
        for name, work, count, cases in ways:
            loads.append(os.getloadavg()[0])
            found[name].append(measure(work, max(8, int(count * scale)), cases))
    system = f"Python {platform.python_version()}, Linux {platform.release()}, {len(os.sched_getaffinity(0))} CPUs"
    print(f"{system}, {jobs} jobs, load {min(loads):.1f} to {max(loads):.1f} when each began, {repeats} repeats\n")
    print("| way | cases/s | CPU ms per program | CPU ms per case |\n| --- | --- | --- | --- |")
    for name, measures in found.items():
        rates = [one.cases / one.wall_s for one in measures]
        each = [1000 * one.cpu_s / one.programs for one in measures]
        case = [1000 * one.cpu_s / one.cases for one in measures]
        print(f"| {name} | {span(rates, '.0f')} | {span(each, '.2f')} | {span(case, '.2f')} |")


def span(values: Sequence[float], form: str) -> str:
    """Lowest to highest."""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def soak(jobs: int, programs: int, inputs: int = 8) -> None:
    """Run many programs through one sandbox, and print its memory, processes and descriptors along the way."""
    import psutil

    me = psutil.Process()
    with Sandbox(Limits(allow_weak=True), jobs=jobs) as sandbox:
        steps, began = 20, time.perf_counter()
        cases = [Case(program, (text,) * inputs) for program, text in chosen(max(1, programs // steps // inputs))]
        print("| executions | zygotes' memory, MiB | parent's memory, MiB | descriptors | processes | zombies | s |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for step in range(1, steps + 1):
            results = sandbox.execute_many(cases)
            assert all(result.value is not None for found in results for result in found)
            family = me.children(recursive=True)
            zombies = sum(process.status() == psutil.STATUS_ZOMBIE for process in family)
            held = sum(process.memory_info().rss for process in family) / 2**20
            row = (f"{step * len(cases) * inputs}", f"{held:.1f}", f"{me.memory_info().rss / 2**20:.1f}")
            rest = (f"{me.num_fds()}", f"{len(family)}", f"{zombies}", f"{time.perf_counter() - began:.0f}")
            print(f"| {' | '.join([*row, *rest])} |", flush=True)


def cruxeval(jobs: int, repeats: int) -> None:
    """How many of the published functions return their published output, by value and type."""
    path = Path(os.environ.get("LONGHAUL_DATA", "")) / "cruxeval.jsonl"
    if not path.is_file():
        raise SystemExit("LONGHAUL_DATA must name a folder with cruxeval.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    cases = [published_case(row["code"], row["input"]) for row in rows]
    with Sandbox(Limits(allow_weak=True), jobs=jobs) as sandbox:
        for _ in range(repeats):
            results = sandbox.execute_many(cases)
            pairs = zip(rows, results, strict=True)
            good = sum(same_value(found[0].value or "", row["output"], strict_types=True) for row, found in pairs)
            print(f"CRUXEval: {good} of {len(rows)} outputs reproduced")


def published_case(program: str, text: str) -> Case:
    """The case. An input that is an expression becomes a second function, which runs in the child too."""
    try:
        parse_arguments(text)
    except Rejected:
        return Case(f"{program}\ndef published(_):\n    return f({text})\n", ("0",), "published")
    return Case(program, (text,))


def main(arguments: list[str] | None = None) -> None:
    """Run the requested benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks sandbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of programs")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="run N programs and watch resource use")
    parser.add_argument("--cruxeval", type=int, default=0, metavar="N", help="run the published functions N times")
    options = parser.parse_args(arguments)
    if options.soak:
        soak(options.jobs, options.soak)
    elif options.cruxeval:
        cruxeval(options.jobs, options.cruxeval)
    else:
        table(options.jobs, options.scale, options.repeats)


if __name__ == "__main__":
    main()
