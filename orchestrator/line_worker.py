"""A worker of one command: told what to do on its standard input, heard line by line, ended with us."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

import msgspec

from orchestrator.launchers.environment import without_master
from profiles.errors import ExitCode, LonghaulError
from state import python

PATIENCE_S = 5.0


class LineWorker:
    """A started `python -m MODULE`. Both ways one JSON object a line."""

    def __init__(self, process: subprocess.Popen[bytes], module: str, kept: str, log: IO[bytes]) -> None:
        self._process, self._module, self._kept, self._log = process, module, kept, log

    def tell(self, message: Any) -> None:
        """Send one line. A worker that is gone is told by `hear`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    def hear(self) -> Iterator[Mapping[str, Any]]:
        """What it says, until it is done. Raises LonghaulError: what it says is wrong, or INTERNAL without a word."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if message["type"] == "error":
                raise LonghaulError(
                    str(message["what"]),
                    kept=str(message["kept"]),
                    next_command=str(message["next_command"]),
                    exit_code=ExitCode(message["exit_code"]),
                )
            yield message
            if message["type"] == "done":
                return
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        self._log.seek(0)
        seen = self._log.read()[-300:].decode(errors="replace").strip()
        raise LonghaulError(
            f"the process of {self._module} {how} without a word" + (f": {seen}" if seen else ""),
            kept=self._kept,
            next_command="python -m orchestrator doctor",
            exit_code=ExitCode.INTERNAL,
        )

    def end(self) -> None:
        """It leaves by itself when its input is closed; if not, it is killed."""
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def started(module: str, spec: Any, kept: str) -> Iterator[LineWorker]:
    """`python -m MODULE`, told `spec` as its first line; ended however the block is left.

    kept: what an error of it leaves as it was.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            python.command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=without_master("command", module),
            start_new_session=True,
        )
        worker = LineWorker(process, module, kept, log)
        try:
            worker.tell(spec)
            yield worker
        finally:
            worker.end()
