"""Show the last lines of a run's log, and follow it.

With --json, the events that workers reported: one JSON object a line. Following ends when nobody holds the run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path

from orchestrator.alive import master_pid
from orchestrator.display.wording import harmless
from orchestrator.runs import find_run
from state.layout import RunDir
from state.reader import Reader

POLL_S = 0.3
LINES = 40
CHUNK = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--lines", type=int, default=LINES, metavar="N", help=f"how many to begin with ({LINES})")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is new until the run ends")


def run(args: argparse.Namespace) -> int:
    run_dir = find_run(args)
    with closing(Reader.open(run_dir)) as reader:
        new = Events(reader, args.lines) if args.json else Lines(run_dir.log, args.lines)
        for line in followed(new, lambda: is_held(run_dir, reader)) if args.follow else new():
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    return 0


def is_held(run_dir: RunDir, reader: Reader) -> bool:
    age = max(0.0, time.time() - reader.history().heartbeat_at)
    return master_pid(run_dir, age) is not None


def followed(new: Callable[[], Iterator[str]], is_alive: Callable[[], bool]) -> Iterator[str]:
    """What is new, again and again; once more after the run's end."""
    while True:
        goes_on = is_alive()
        yield from new()
        if not goes_on:
            return
        time.sleep(POLL_S)


class Lines:
    """Whole lines of a log: at first the last ones, then those written since."""

    def __init__(self, path: Path, first: int) -> None:
        self._path, self._at = path, 0
        with suppress(FileNotFoundError), path.open("rb") as file:
            self._at = start_of_last(file.fileno(), max(0, first))

    def __call__(self) -> Iterator[str]:
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._at:
                self._at = 0  # it was written anew
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # its end is not written yet
                self._at += len(line)
                yield harmless(line[:-1].decode(errors="replace"))


def start_of_last(fd: int, count: int) -> int:
    """Offset at which the last `count` lines of a file begin. Reads from its end, so that a long log costs nothing."""
    end = at = os.fstat(fd).st_size
    seen = 0
    while at:
        size = min(CHUNK, at)
        at -= size
        chunk = os.pread(fd, size, at)
        place = len(chunk)
        while (place := chunk.rfind(b"\n", 0, place)) >= 0:
            if at + place + 1 < end and (seen := seen + 1) == count:
                return at + place + 1
    return 0 if count else end


class Events:
    """Events of the store as JSON: at first the last ones, then those ingested since."""

    def __init__(self, reader: Reader, first: int) -> None:
        self._reader = reader
        self._after = max(0, reader.last_event() - max(0, first))

    def __call__(self) -> Iterator[str]:
        for number, event in self._reader.events_after(self._after):
            self._after = number
            yield json.dumps(asdict(event))
