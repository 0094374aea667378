"""The link of a worker that a scheduler started. Messages are lines of files, and only one copy of the worker may work.

A scheduler restarts a job after losing a node, while tasks of the old job may still run. Each start therefore claims
the attempt by creating a file exclusively. A process that sees the claim of a later start exits at once.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from profiles.errors import ExitCode
from state.checkpoint import Damaged, Manifest, verify
from state.layout import AttemptDir, RunDir
from state.line_file import LineReader, append
from workers.contract import CheckpointRef, Message, Outcome, Result, WorkerSpec

log = logging.getLogger("worker")

LOOK_EVERY_S = 0.25
FENCE_S = 5.0
"""Seconds in which an earlier copy must see its successor's claim. It checks every LOOK_EVERY_S and before each
checkpoint."""


class Claim(msgspec.Struct, frozen=True):
    """The process that works on an attempt."""

    token: str
    host: str
    pid: int


class Mailbox:
    """The link of a worker whose master may be absent or on another host."""

    def __init__(self, directory: AttemptDir, token: str, restart: int) -> None:
        self._directory = directory
        self._token = token
        self._restart = restart
        self._reader = LineReader(directory.requests)
        self._is_told_to_stop = False

    def lines(self) -> Iterator[bytes]:
        while True:
            with suppress(OSError):  # the shared file system failed once: look again
                self.fence()
                yield from self._reader.read()
                if not self._is_told_to_stop and self._directory.stop.name in self._names():
                    self._is_told_to_stop = True
                    yield msgspec.json.encode(Message(type="stop", attempt=self._token))
            time.sleep(LOOK_EVERY_S)

    def send(self, line: bytes) -> None:
        append(self._directory.replies, line.rstrip(b"\n"))

    def fence(self) -> None:
        if self._directory.claim(self._restart + 1).name in self._names():
            log.warning("another copy of this job has started: this one ends")
            os._exit(ExitCode.OK)

    def _names(self) -> set[str]:
        """Names of the files in the attempt's directory. Listing makes a network file system query its server;
        `exists` may answer from this host's cache."""
        return set(os.listdir(self._directory.path))  # noqa: PTH208 - names alone


def claim(directory: AttemptDir, token: str, restart: int) -> bool:
    """Claim the attempt. Returns False if another process has it; this one must then touch nothing."""
    starts = [int(path.suffix[1:]) for path in directory.path.glob("claim.*") if path.suffix[1:].isdigit()]
    if max(starts, default=-1) > restart:
        return False
    mine = Claim(token, socket.gethostname(), os.getpid())
    try:
        fd = os.open(directory.claim(restart), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(mine))
        file.flush()
        os.fsync(file.fileno())
    return True


def ended_before(directory: AttemptDir) -> int | None:
    """Exit code of an earlier start of this job that left nothing to do; None if there is work left."""
    try:
        result = msgspec.json.decode(directory.result.read_bytes(), type=Result)
    except (OSError, msgspec.MsgspecError):
        return None
    return None if result.outcome == Outcome.STOPPED else result.exit_code


def from_newest_checkpoint(spec: WorkerSpec) -> WorkerSpec:
    """The spec with this attempt's newest intact checkpoint as its head; unchanged if it has none."""
    run = RunDir(Path(spec.run_dir))
    newest = spec.head
    for path in sorted(run.checkpoints.glob("[!.]*")):
        with suppress(Damaged):
            manifest = verify(path, deep=False)
            if manifest.token == spec.token and (newest is None or manifest.step > newest.step):
                newest = CheckpointRef(
                    path=run.relative(path),
                    step=manifest.step,
                    checkpoint_id=Manifest.checkpoint_id(path),
                    digest=manifest.digest,
                )
    return spec if newest is None else replace(spec, head=newest, first_step=newest.step + 1)


def last_seq(directory: AttemptDir) -> int:
    """`seq` of the last complete event that an earlier start wrote; 0 if there is none."""
    found = 0
    with suppress(FileNotFoundError):
        for line in directory.events.read_bytes().splitlines():
            with suppress(msgspec.MsgspecError):
                found = max(found, msgspec.json.decode(line, type=_Numbered).seq)
    return found


class _Numbered(msgspec.Struct):
    seq: int = 0
