"""The parent's handle on one zygote process: starts it by exec, queues jobs for it, and reads its replies."""

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
"""Seconds a zygote has to exit after its pipes are closed, before it is killed."""


class ZygoteDied(Exception):
    """The zygote exited or failed to start."""


class Lane:
    """A zygote and its jobs in flight, oldest first."""

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
            # LD_BIND_NOW resolves symbols once, here, so that children need not.
            env={"PYTHONHASHSEED": str(hash_seed), "LD_BIND_NOW": "1"},
            cwd="/",
            start_new_session=True,  # Ctrl+C reaches only the parent, which then closes the pipes
            close_fds=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.write_fd = self.process.stdin.fileno()
        self.read_fd = self.process.stdout.fileno()
        os.set_blocking(self.write_fd, False)
        self.report: dict[str, Any] = {}
        self._head_since = 0.0
        # Send the settings now, without waiting for a report: zygotes then start up in parallel.
        settings = json.dumps(self._settings()).encode()
        self.send(HEADER.pack(len(settings)) + settings)

    def _settings(self) -> dict[str, Any]:
        """Settings for the zygote, sent as the first frame."""
        limits = self.limits
        return {
            "modules": list(limits.importable),
            "scripts": limits.scripts,
            "memory_bytes": limits.memory_mb << 20,
            "without": list(limits.without),
            "deny_clock": limits.deny_clock,
        }

    def await_report(self) -> None:
        """Wait until the zygote is ready. Raises ZygoteDied with the reason if it fails to start."""
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
        self.send(job.message())

    def take(self, now: float) -> Job:
        """Remove and return the oldest job, whose reply has arrived."""
        self._head_since = now
        return self.jobs.popleft()

    def running_s(self, job: Job, now: float) -> float:
        """Seconds since this lane started the job; 0 if it has not started it."""
        return now - self._head_since if self.jobs and self.jobs[0] is job else 0.0

    def is_lost(self, now: float, grace_s: float) -> bool:
        """Whether the oldest job is still unanswered `grace_s` after its longest allowed wall time."""
        return bool(self.jobs) and now - self._head_since > self.jobs[0].longest_s + grace_s

    def send(self, message: bytes) -> None:
        """Queue a message and write as much as the pipe accepts now."""
        self._outgoing += message
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe accepts now. A broken pipe is ignored here; `receive` detects it."""
        with suppress(BlockingIOError, BrokenPipeError):
            while self._outgoing:
                written = os.write(self.write_fd, self._outgoing)
                del self._outgoing[:written]

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def receive(self) -> bytes | None:
        """Read once and return the next complete frame, if any. Raises ZygoteDied at end of stream."""
        chunk = os.read(self.read_fd, 1 << 18)
        if not chunk:
            raise ZygoteDied(f"zygote ended with code {self._code()}")
        self._incoming += chunk
        return self.next_frame()

    def next_frame(self) -> bytes | None:
        """The next complete frame already received, or None."""
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
        """End the zygote and whatever it runs; returns once it is reaped."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        if self._code() is None:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """Kill the zygote without waiting for it to exit, then `close`."""
        self.process.kill()
        self.close()
