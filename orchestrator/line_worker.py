"""A worker that serves one command: it reads requests on standard input, answers in lines, and ends with us.

`workers/line_contract.py` has the messages, `workers/lines.py` the other side.
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
    """A started worker. name, kept, next_command: what an error calls it, leaves as it was, and advises."""

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
        """Its messages, until it is done. Raises LonghaulError: one of them, or INTERNAL without a message."""
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
            raise self._broken(f"said what this program does not know ({error})") from error

    def _broken(self, how: str) -> LonghaulError:
        return LonghaulError(
            f"the {self._name} worker {how}",
            kept=self._kept,
            next_command=self._next_command,
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
    """`python -m MODULE`, told `spec` as its first line; ended however the block is left, whatever it does.

    name, kept, next_command: of an error, as in `LineWorker`. owner: the run that it works for (`copies.owner_of`), so
    that a next master finds it should we be killed. log: takes what it prints; None: forgotten with it, but for its
    last words. pass_fds: descriptors that it holds for as long as it lives.
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
    """The process, with pipes for requests and answers."""
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
