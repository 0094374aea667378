"""The filter: reads cases as JSON lines and writes answers as JSON lines, in the same order.

An unreadable line gets an error answer in its place; the other lines are unaffected.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workers.sandbox.pool import Sandbox
from workers.sandbox.result import Case, Result, Status

CHUNK_LINES = 512
"""Maximum lines per chunk. Lines already received are answered before the filter waits for more."""
MAX_LINE = 32 << 20
"""Maximum length of one line, in bytes."""


@dataclass
class Stats:
    """Statistics of one filter run."""

    started: float = field(default_factory=time.monotonic)
    statuses: Counter[str] = field(default_factory=Counter)
    from_wall: int = 0
    cpu_s: float = 0.0

    def count(self, result: Result) -> None:
        self.statuses[result.status.value] += 1
        self.from_wall += result.from_wall
        self.cpu_s += result.cpu_s

    def line(self) -> str:
        """A one-line human-readable summary."""
        total, elapsed = self.statuses.total(), time.monotonic() - self.started
        counts = ", ".join(f"{number} {status}" for status, number in self.statuses.most_common())
        rate = total / elapsed if elapsed > 0 else 0.0
        return (
            f"{total} cases in {elapsed:.2f} s ({rate:.0f}/s): {counts or 'nothing'}; "
            f"{self.cpu_s:.2f} s of CPU in programs, {self.from_wall} verdicts by the wall clock"
        )


def run(sandbox: Sandbox, source_fd: int, sink_fd: int) -> Stats:
    """Answer every line of the source. Exits the process immediately once the sink's reader is gone."""
    stats = Stats()
    _end_with(sink_fd)
    number = 0
    for lines in _chunks(source_fd):
        read = [_read_case(line, number + place + 1) for place, line in enumerate(lines)]
        number += len(lines)
        results = iter(sandbox.execute_many([found for _, found in read if isinstance(found, Case)]))
        answers = []
        for case_id, found in read:
            result = next(results)[0] if isinstance(found, Case) else found
            stats.count(result)
            answers.append(_answer(case_id, result))
        _write(sink_fd, "".join(answers).encode())
    return stats


def _read_case(line: bytes, number: int) -> tuple[Any, Case | Result]:
    """Parse one line into (id, Case), or (id if known, rejecting Result)."""

    def refuse(reason: str) -> Result:
        return Result(Status.REJECTED, message=f"line {number}: {reason}")

    if len(line) > MAX_LINE:
        return None, refuse(f"longer than {MAX_LINE} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, refuse(f"not JSON: {error}")
    if not isinstance(found, dict):
        return None, refuse("not an object")
    texts = [found.get("program"), found.get("input"), found.get("entry", "f")]
    for key, text in zip(("program", "input", "entry"), texts, strict=True):
        if not isinstance(text, str):
            return found.get("id"), refuse(f"{key!r} is missing" if text is None else f"{key!r} is not a string")
    program, inputs, entry = map(str, texts)
    return found.get("id"), Case(program, (inputs,), entry)


def _answer(case_id: Any, result: Result) -> str:
    answer: dict[str, Any] = {"id": case_id, "status": result.status.value, "output": result.value}
    if result.error_type:
        answer["error_type"] = result.error_type
    if result.message:
        answer["message"] = result.message
    if result.from_wall:
        answer["from_wall"] = True
    return json.dumps(answer) + "\n"


def _chunks(fd: int) -> Iterator[list[bytes]]:
    """Yield lines as they arrive, at most CHUNK_LINES per chunk; the last line may lack its newline."""
    pending = bytearray()
    searched = 0
    ready: list[bytes] = []
    while True:
        waits = bool(ready) and not select.select([fd], [], [], 0)[0]
        if len(ready) >= CHUNK_LINES or waits:
            yield ready[:CHUNK_LINES]
            ready = ready[CHUNK_LINES:]
            continue
        data = os.read(fd, 1 << 16)
        if not data:
            break
        pending += data
        if pending.find(b"\n", searched) >= 0:
            *lines, rest = bytes(pending).split(b"\n")
            ready.extend(lines)
            pending = bytearray(rest)
        del pending[MAX_LINE + 1 :]  # overlong line: keep just enough to detect it
        searched = len(pending)
    if pending.strip():
        ready.append(bytes(pending))
    for start in range(0, len(ready), CHUNK_LINES):
        yield ready[start : start + CHUNK_LINES]


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _end_with(sink_fd: int) -> None:
    """Watch the sink from a thread and exit when its reader goes away; the zygotes then exit by themselves."""

    def watch() -> None:
        poll = select.poll()
        poll.register(sink_fd, 0)  # POLLERR is always reported; it means the read end is closed
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll()):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
