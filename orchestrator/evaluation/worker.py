"""One evaluation worker: started with its spec and the folder's lock, read line by line, ended with us."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.launchers.environment import without_master
from profiles.errors import ExitCode, LonghaulError
from state import durable, python
from workers.contract import LIFELINE_FD_VARIABLE, EvaluationSpec

PATIENCE_S = 5.0
KEPT = "every answer so far; the same command goes on from there"


def talk(spec: EvaluationSpec, evaluation_id: str, lock_fd: int) -> Iterator[Mapping[str, Any]]:
    """What the worker says, until it is done. It inherits the lock, so that no second one starts while it lives.

    Raises LonghaulError: what the worker says is wrong, or INTERNAL where it dies without a word. Leaving ends it.
    """
    folder = Path(spec.folder)
    durable.write_file(folder / "spec.json", msgspec.json.encode(spec))
    reader, lifeline = os.pipe()
    log = folder / "worker.log"
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                python.command("workers.evaluate", str(folder / "spec.json")),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**without_master(evaluation_id, evaluation_id), LIFELINE_FD_VARIABLE: str(reader)},
                pass_fds=(reader, lock_fd),
                start_new_session=True,
            )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(reader)
    try:
        yield from _lines(process, log)
    finally:
        os.close(lifeline)
        _end(process)


def _lines(process: subprocess.Popen[bytes], log: Path) -> Iterator[Mapping[str, Any]]:
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
    raise LonghaulError(
        f"the evaluation worker {how} without a word",
        kept=KEPT,
        next_command=f"tail {log}",
        exit_code=ExitCode.INTERNAL,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """It leaves by itself when its lifeline is closed; if not, it is killed."""
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
