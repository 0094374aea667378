"""The master that this process started: whether it lives, and how it ended."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import ExitCode, LonghaulError

if TYPE_CHECKING:
    from state.layout import RunDir

ENDED_WELL = (ExitCode.OK, ExitCode.STAGNANT, ExitCode.ABORTED)
"""Stagnation is a result, and a run that was stopped at once did as it was told: neither is a failure."""
END_S = 60.0
"""How long a master may take to leave after it answered `stop`."""


class Process:
    """A master in a session of its own: it goes on when this process ends."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object; a pipe would end with Python
        self._popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def end(self) -> None:
        """Wait for the end of a master that has said that it ends. Raises subprocess.TimeoutExpired."""
        self._popen.wait(END_S)

    def raise_if_failed(self, run: RunDir) -> None:
        """Raises LonghaulError with the exit code of an ended master and the three lines that it printed."""
        code = self._popen.poll()
        if code is None or code in ENDED_WELL:
            return
        self._errors.seek(0)
        raise error_of(run, code, self._errors.read().decode(errors="replace"))


@contextmanager
def commands_among(folder: Path) -> Iterator[None]:
    """Errors of the block are those of the command line: of a store, a disk or a permission too, and with a command
    that names the folder of all runs, unless it is ./runs."""
    try:
        yield
    except Exception as error:
        from orchestrator.display.wording import among
        from orchestrator.path_errors import failure_of

        failure = error if isinstance(error, LonghaulError) else failure_of(error)
        if failure is None:
            raise
        failure.next_command = among(folder, failure.next_command)
        raise failure from error.__cause__ if failure is error else error


def error_of(run: RunDir, code: int, text: str) -> LonghaulError:
    """The error of a master. code: as of subprocess, negative for a signal. text: its standard error. (pure)"""
    from orchestrator.display.wording import among

    what, kept, next_command = three_lines(text)
    if not what:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        what = f"the master of run '{run.name}' {how}"
    return LonghaulError(
        what,
        kept=kept or "the head and everything that was committed",
        next_command=next_command or among(run.folder, f"python -m orchestrator run --run {run.name}"),
        exit_code=ExitCode(code) if code in list(ExitCode) else ExitCode.INTERNAL,
    )


def three_lines(text: str) -> tuple[str, str, str]:
    """(what, kept, next command) of the last error in a text; empty strings if there is none. (pure)"""
    _, found, rest = f"\n{text}".rpartition("\nerror: ")
    what, is_kept, rest = rest.partition("\nkept:  ")
    kept, is_next, command = rest.partition("\nnext:  ")
    return (what.strip(), kept.strip(), command.strip()) if found and is_kept and is_next else ("", "", "")
