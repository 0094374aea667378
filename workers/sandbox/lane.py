"""One zygote process as the parent sees it: started by exec, fed with jobs, read without ever blocking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from workers.sandbox.inside.frames import HEADER
from workers.sandbox.job import Job
from workers.sandbox.limits import Limits

BOOT = "import sys; sys.path.insert(0, {home!r}); from inside.boot import main; main()"
STOP_S = 5.0
"""Seconds that a zygote gets to leave after its pipes are closed; then it is killed."""


class ZygoteDied(Exception):
    """The zygote is gone or never came up."""


class Lane:
    """A zygote and the jobs that are on their way through it, oldest first."""

    def __init__(self, limits: Limits, hash_seed: int) -> None:
        self.limits = limits
        self.hash_seed = hash_seed
        self.jobs: deque[Job] = deque()
        self._incoming = bytearray()
        self._outgoing = bytearray()
        boot = BOOT.format(home=str(Path(__file__).parent))
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Bound once here, symbols need not be looked up in each child.
            env={"PYTHONHASHSEED": str(hash_seed), "LD_BIND_NOW": "1"},
            cwd="/",
            start_new_session=True,  # Ctrl+C is for the parent, which then closes the pipes
            close_fds=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.write_fd = self.process.stdin.fileno()
        self.read_fd = self.process.stdout.fileno()
        os.set_blocking(self.write_fd, False)
        self.report: dict[str, Any] = {}
        self._head_since = 0.0
        # It loads its modules and seals itself while others start, too.
        settings = json.dumps(self._settings()).encode()
        self.send(HEADER.pack(len(settings)) + settings)

    def _settings(self) -> dict[str, Any]:
        """What the zygote must know, sent as its first frame."""
        limits = self.limits
        return {
            "modules": list(limits.modules),
            "memory_bytes": limits.memory_mb << 20,
            "wall_s": limits.wall_s,
            "without": list(limits.without),
            "deny_clock": limits.deny_clock,
        }

    def await_report(self) -> None:
        """Wait until the zygote is ready. Raises ZygoteDied with its reason if it is not."""
        while (frame := self.receive()) is None:
            pass
        self.report = json.loads(frame)
        if "failed" in self.report:
            raise ZygoteDied(self.report["failed"])

    def give(self, job: Job, now: float) -> None:
        """Queue a job. `now` is monotonic time."""
        if not self.jobs:
            self._head_since = now
        self.jobs.append(job)
        self.send(job.message(self.limits.cpu_s))

    def take(self, now: float) -> Job:
        """The oldest job: its answer has come."""
        self._head_since = now
        return self.jobs.popleft()

    def is_lost(self, now: float, grace_s: float) -> bool:
        """Whether the oldest job is unanswered beyond all that its wall limits allow."""
        return bool(self.jobs) and now - self._head_since > self.jobs[0].expected * self.limits.wall_s + grace_s

    def send(self, message: bytes) -> None:
        """Queue a message and write what the pipe takes now."""
        self._outgoing += message
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes now. A pipe without reader is found out by `receive`."""
        with suppress(BlockingIOError, BrokenPipeError):
            while self._outgoing:
                written = os.write(self.write_fd, self._outgoing)
                del self._outgoing[:written]

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def receive(self) -> bytes | None:
        """One read, then the next whole frame if there is one. Raises ZygoteDied at the end of the stream."""
        chunk = os.read(self.read_fd, 1 << 18)
        if not chunk:
            raise ZygoteDied(f"zygote ended with code {self._code()}")
        self._incoming += chunk
        return self.next_frame()

    def next_frame(self) -> bytes | None:
        """A frame that has already come."""
        if len(self._incoming) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self._incoming)
        end = HEADER.size + size
        if len(self._incoming) < end:
            return None
        frame = bytes(self._incoming[HEADER.size : end])
        del self._incoming[:end]
        return frame

    def _code(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(STOP_S)
        return None

    def close(self) -> None:
        """End the zygote and whatever it runs; returns when it is reaped."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        if self._code() is None:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """`close` for a zygote that need not get the time to leave."""
        self.process.kill()
        self.close()
