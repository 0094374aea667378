"""One data worker: told what to do on its standard input, read line by line, ended with us."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

import msgspec

from orchestrator.launchers.environment import without_master
from profiles.errors import ExitCode, LonghaulError
from state import python
from workers.contract import DataSpec

PATIENCE_S = 5.0
KEPT = "the data set as it was, and all sources"


def talk(spec: DataSpec, owner: str = "data") -> Iterator[Mapping[str, Any]]:
    """What the worker says, until it is done. Leaving ends it, whatever it does: it writes whole files or none.

    owner: the run that it works for (`copies.owner_of`), so that a next master finds it should we be killed. Raises
    LonghaulError: what the worker says is wrong, or INTERNAL where it dies without a word.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            python.command("workers.data"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=without_master(owner, "data"),
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # why it died is told below
                process.stdin.write(msgspec.json.encode(spec) + b"\n")
                process.stdin.flush()
            yield from _lines(process, log)
        finally:
            _end(process)


def _lines(process: subprocess.Popen[bytes], log: IO[bytes]) -> Iterator[Mapping[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        with suppress(ValueError):
            message = json.loads(line)
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
    code = process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    log.seek(0)
    seen = log.read()[-300:].decode(errors="replace").strip()
    raise LonghaulError(
        f"the data worker {how} without a word" + (f": {seen}" if seen else ""),
        kept=KEPT,
        next_command="the same command once more; it goes on from whole files",
        exit_code=ExitCode.INTERNAL,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """It leaves by itself when its input is closed; if not, it is killed."""
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
