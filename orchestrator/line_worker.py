"""Runs a worker for one command. It reads requests on standard input, answers in lines, and ends with the command.

`workers/line_contract.py` defines the messages, `workers/lines.py` is the other side.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from orchestrator.launchers.environment import without_master
from profiles.errors import ExitCode, LonghaulError
from state import python
from workers.line_contract import Done, Error, Said, read_line

PATIENCE_S = 5.0
DOCTOR = "python -m orchestrator doctor"


class LineWorker:
    """A started worker. name, kept, next_command: used in errors that the worker does not explain itself."""

    def __init__(
        self, process: subprocess.Popen[bytes], name: str, kept: str, next_command: str, log: IO[bytes]
    ) -> None:
        self._process, self._log = process, log
        self._name, self._kept, self._next_command = name, kept, next_command

    def tell(self, message: msgspec.Struct) -> None:
        """Send one line, the spec first. If the worker is gone, `hear` raises."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    def hear(self) -> Iterator[Said]:
        """Yield messages until the worker is done. Raises the LonghaulError that it reports, or INTERNAL if it dies."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = self._understood(line)
            if isinstance(message, Error):
                raise LonghaulError(
                    message.what,
                    kept=message.kept or self._kept,
                    next_command=message.next_command or self._next_command,
                    exit_code=ExitCode(message.exit_code),
                )
            if isinstance(message, Done):
                return
            if message is not None:
                yield message
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        self._log.seek(0)
        seen = self._log.read()[-300:].decode(errors="replace").strip()
        raise self._broken(f"{how} without a message" + (f": {seen}" if seen else ""))

    def _understood(self, line: bytes) -> Said | None:
        try:
            return read_line(line)
        except msgspec.ValidationError as error:
            raise self._broken(f"sent an unknown message ({error})") from error

    def _broken(self, how: str) -> LonghaulError:
        return LonghaulError(
            f"the {self._name} worker {how}",
            kept=self._kept,
            next_command=self._next_command,
            exit_code=ExitCode.INTERNAL,
        )

    def end(self) -> None:
        """Close the worker's input, which makes it exit; kill it if it does not."""
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
def started(
    module: str,
    spec: msgspec.Struct,
    *,
    name: str,
    kept: str,
    next_command: str = DOCTOR,
    owner: str = "command",
    log: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[LineWorker]:
    """Start `python -m MODULE` with `spec` as its first line, and end it when the block is left.

    name, kept, next_command: see `LineWorker`. owner: the run it works for (`copies.owner_of`), so that the next master
    finds it if we are killed. log: file for its output; None keeps the output only for error messages. pass_fds:
    descriptors that the worker inherits.
    """
    with _opened(log) as output:
        process = start(module, output, without_master(owner, module), pass_fds)
        worker = LineWorker(process, name, kept, next_command, output)
        try:
            worker.tell(spec)
            yield worker
        finally:
            worker.end()


def start(
    module: str, log: IO[bytes], environment: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start the process with pipes for requests and answers."""
    return subprocess.Popen(
        python.command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=dict(environment),
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )


def _opened(log: Path | None) -> AbstractContextManager[IO[bytes]]:
    return tempfile.TemporaryFile() if log is None else log.open("a+b")
