"""Asks `samples` in a process of its own, so that neither the master nor `top` waits for it or parses rollouts."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress

from orchestrator.sampled import Sample
from state import python
from state.layout import RunDir

EVERY_S = 5.0
"""Least time from one start to the next."""
NUMBER = 40
TEXTS = ("program", "input", "output", "prompt", "answer", "found")


class SampleReader:
    """samples: the newest that came; None: the first have not come yet."""

    def __init__(self, run: RunDir) -> None:
        self.samples: list[Sample] | None = None
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._started_at = float("-inf")

    def poll(self) -> list[Sample] | None:
        """Take what has come, and ask again after a while. Never waits."""
        if self._process is None and time.monotonic() - self._started_at > EVERY_S:
            self._start()
        if self._process is not None and self._process.stdout is not None:
            self._take(self._process, self._process.stdout.fileno())
        return self.samples

    def _start(self) -> None:
        self._started_at, self._read = time.monotonic(), b""
        named = ["--runs", str(self._run.root.parent), "--run", self._run.name]
        command = [*python.command("orchestrator"), "samples", "--json", "-n", str(NUMBER), *named]
        with suppress(OSError):  # no process to be had: next time
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)

    def _take(self, process: subprocess.Popen[bytes], fd: int) -> None:
        try:
            while chunk := os.read(fd, 1 << 16):
                self._read += chunk
        except BlockingIOError:
            return
        process.wait()
        self._process = None
        with suppress(ValueError, KeyError, TypeError):
            found = [_sample(one) for one in json.loads(self._read)]
            before = [one for one in self.samples or () if one.kind == "rollout"]
            # Rollouts are deleted once a checkpoint holds their step: those that were read last stay until others come.
            self.samples = found if any(one.kind == "rollout" for one in found) else [*found, *before]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _sample(told: dict[str, object]) -> Sample:
    texts = tuple((name, str(told[name])) for name in TEXTS if name in told)
    reward = told["reward"]
    number = float(reward) if isinstance(reward, int | float) else None
    return Sample(str(told["kind"]), int(str(told["step"])), str(told["task"]), texts, str(told["verdict"]), number)
