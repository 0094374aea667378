"""Programs per second through the code server, beside those of its sandbox alone, in interleaved rounds of one run.

    python -m benchmarks code_server                       the table
    python -m benchmarks code_server --rounds 9 --programs 2000

Both ways run the same scripts in as many processes side by side. The clients of the server run on the same processors,
and what they use is taken from the server: the ratio of programs/s is a lower bound. CPU is that of sandbox or server
with all descendants, without the clients. Figures of one round share whatever else the machine does, so compare ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from workers.sandbox import Limits, Sandbox, Script

PROGRAMS = (
    ("a, b = map(int, input().split())\nprint(a + b)", "20 22"),
    ("import sys\nprint(*sorted(map(int, sys.stdin.read().split())))", "3 1 2\n9 8 7"),
    ("n = int(input())\na, b = 0, 1\nfor _ in range(n): a, b = b, a + b\nprint(a)", "30"),
    ("import math\nx, y = map(int, input().split())\nprint(math.lcm(x, y))", "84 36"),
)
"""Short, as models write them: what is measured is the way there and back."""


@dataclass(frozen=True)
class Measure:
    """One way, one round."""

    rate: float
    """Programs per second."""
    cpu_ms: float
    """Of a program."""
    latencies_s: list[float]
    """Of each request."""


def cpu_of(process: psutil.Process) -> float:
    """CPU seconds of a process and of all its descendants, those that have ended too."""
    return sum(sum(one.cpu_times()[:4]) for one in [process, *process.children(recursive=True)])


def by_pool(sandbox: Sandbox, count: int) -> Measure:
    """The sandbox by itself, in this process."""
    own = psutil.Process()
    scripts = [Script(*(program, text.encode())) for program, text in chosen(count)]
    cpu, began = cpu_of(own), time.perf_counter()
    results = sandbox.run_scripts(scripts)
    wall = time.perf_counter() - began
    assert all(result.exit_code == 0 for result in results)
    return Measure(count / wall, (cpu_of(own) - cpu) / count * 1000, [])


def chosen(count: int) -> list[tuple[str, str]]:
    return [PROGRAMS[place % len(PROGRAMS)] for place in range(count)]


def requests(form: str, path: str, count: int) -> list[bytes]:
    """Whole HTTP requests for that many programs."""
    if form == "run_code":
        bodies = [
            {
                "compile_timeout": 10,
                "run_timeout": 10,
                "code": program,
                "stdin": text,
                "memory_limit_MB": 1024,
                "language": "python",
                "files": {},
                "fetch_files": [],
            }
            for program, text in chosen(count)
        ]
    else:
        bodies = [
            {"program": program, "tests": [{"input": text, "output": ""}] * 10, "max_execution_time": 1.0}
            for program, text in chosen(count // 10)
        ]
    texts = [json.dumps(body).encode() for body in bodies]
    head = f"POST {path}/{form} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    return [f"{head}{len(text)}\r\n\r\n".encode() + text for text in texts]


def by_server(process: psutil.Process, url: str, form: str, count: int, connections: int) -> Measure:
    """The server, asked over that many connections at once."""
    parts = urlsplit(url)
    waiting = requests(form, parts.path, count)
    latencies: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while waiting:
            began = time.perf_counter()
            writer.write(waiting.pop())
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            assert head.startswith(b"HTTP/1.1 200 "), head
            latencies.append(time.perf_counter() - began)
        writer.close()

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(connections)))

    cpu, began = cpu_of(process), time.perf_counter()
    asyncio.run(clients())
    wall = time.perf_counter() - began
    return Measure(count / wall, (cpu_of(process) - cpu) / count * 1000, latencies)


@contextmanager
def served(jobs: int) -> Iterator[tuple[psutil.Process, str]]:
    command = [sys.executable, "-m", "workers.sandbox", "serve", "--port", "0", "--jobs", str(jobs), "--allow-weak"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield psutil.Process(process.pid), process.stdout.readline().split()[-1]
        finally:
            process.terminate()


FORMS = ("run_code", "test_program_stdio")


def table(jobs: int, rounds: int, count: int, connections: int) -> None:
    """Print medians and ratios."""
    limits = Limits(scripts=True, memory_mb=1024, allow_weak=True)
    found: dict[str, list[Measure]] = {name: [] for name in ("pool", *FORMS)}
    with Sandbox(limits, jobs=jobs) as sandbox, served(jobs) as (process, url):
        by_pool(sandbox, count // 4)
        for _ in range(rounds):
            found["pool"].append(by_pool(sandbox, count))
            for form in FORMS:
                found[form].append(by_server(process, url, form, count, connections))
    load = os.getloadavg()[0]
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.1f}")
    print(f"{rounds} rounds of {count} programs, {jobs} side by side, {connections} connections\n")
    print(
        "| way | programs/s | of the pool's | CPU ms per program | request p50, p95, p99 (ms) |\n|---|---|---|---|---|"
    )
    for name, measures in found.items():
        ratios = [one.rate / pool.rate for one, pool in zip(measures, found["pool"], strict=True)]
        every = sorted(second * 1000 for one in measures for second in one.latencies_s)
        told = ", ".join(f"{every[int(len(every) * part)]:.0f}" for part in (0.5, 0.95, 0.99)) if every else "-"
        rate, cpu = (statistics.median(values) for values in zip(*((m.rate, m.cpu_ms) for m in measures), strict=True))
        share = f"{statistics.median(ratios):.0%} ({min(ratios):.0%} to {max(ratios):.0%})"
        print(f"| {name} | {rate:.0f} | {share} | {cpu:.2f} | {told} |")


def main(arguments: list[str] | None = None) -> None:
    """Run what was asked for."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks code_server", description=__doc__, formatter_class=plain)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--programs", type=int, default=1000, help="of each way in each round")
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args(arguments)
    table(options.jobs, options.rounds, options.programs, options.connections)


if __name__ == "__main__":
    main()
