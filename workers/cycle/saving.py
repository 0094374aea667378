"""From a trainer's registry to a durable checkpoint, and back from a verified one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from profiles.disk import INLINE_BYTES, MOST_UNHASHED
from profiles.errors import ExitCode, LonghaulError
from state import checkpoint, durable, event_kinds
from state.checkpoint import Manifest
from state.history import num_unhashed
from state.layout import RunDir
from state.reader import Reader
from state.registry import Registry
from workers.contract import CheckpointRef, Message
from workers.runtime import Attempt

HASH_PATIENCE_S = 20.0
"""Seconds. A hung disk or a stopped master must not delay training for longer at each checkpoint."""
LOOK_EVERY_S = 0.1
EXACTNESS = ("torch", "transformers", "safetensors", "numpy", "msgspec", "peft", "bitsandbytes")
"""Libraries whose version decides whether a resume is bit-exact."""


def versions() -> dict[str, str]:
    """Versions that the results depend on, from package metadata, without importing anything."""
    import importlib.metadata  # a third of what the imports of a worker take, and needed with the first checkpoint
    import platform

    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in EXACTNESS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def open_head(run: RunDir, run_id: str, head: CheckpointRef | None) -> tuple[Path, Manifest] | None:
    """Directory and manifest of the head, after checking every byte. Raises LonghaulError (INPUT) on any difference."""
    if head is None:
        return None
    directory = run.root / head.path
    try:
        manifest = checkpoint.verify(directory, deep=True)
        problem = ""
        if Manifest.checkpoint_id(directory) != head.checkpoint_id:
            problem = "it is not the one that was committed under this name"
        elif manifest.run_id != run_id:
            problem = f"it belongs to the run {manifest.run_id}"
    except checkpoint.Damaged as damaged:
        problem = damaged.reason
    if problem:
        raise LonghaulError(
            f"checkpoint {head.path} cannot be used: {problem}",
            kept="all files, unchanged",
            next_command="python -m orchestrator run   (falls back to the newest checkpoint that verifies)",
            exit_code=ExitCode.INPUT,
        )
    return directory, manifest


class Saver:
    """Writes the checkpoints of one attempt, and answers requests for one."""

    def __init__(self, attempt: Attempt, registry: Registry, write_static: Callable[[Path], None]) -> None:
        self._attempt = attempt
        self._registry = registry
        self._write_static = write_static
        self._num_bytes = 0
        """Size of the newest checkpoint that this attempt wrote."""

    @property
    def step(self) -> int:
        """Step of the newest checkpoint; -1 if there is none."""
        return self._attempt.saved.step if self._attempt.saved else -1

    def save(self, step: int) -> None:
        """Stage, make durable, report. A power failure after it returns loses nothing."""
        spec, parent = self._attempt.spec, self._attempt.saved
        with self._attempt.stage("checkpoint"):
            self._attempt.control.fence()
            self._attempt.sync()
            self._wait_for_hashes()
            self._check_room()
            saved = checkpoint.stage(
                self._attempt.run,
                run_id=spec.run_id,
                parent=parent.checkpoint_id if parent else None,
                cycle=spec.cycle,
                attempt=spec.attempt,
                token=spec.token,
                step=step,
                profile_sha256=spec.profile_sha256,
                versions=versions(),
                write=self._write,
            )
        self._num_bytes = saved.manifest.bytes
        self._attempt.saved = CheckpointRef(
            path=saved.path, step=step, checkpoint_id=saved.checkpoint_id, digest=saved.digest
        )
        self._attempt.event(
            event_kinds.CHECKPOINT, path=saved.path, checkpoint_id=saved.checkpoint_id, digest=saved.digest
        )
        self._attempt.control.send(self._message(0))

    def answer(self, ids: Sequence[int]) -> None:
        """One reply each; all requests in one step get the same checkpoint."""
        if self._attempt.saved is None:
            return
        for id_ in ids:
            self._attempt.control.send(self._message(id_))

    def _wait_for_hashes(self) -> None:
        """Let the master catch up with large checkpoints, unless the run is stopping. It prunes checkpoints only once
        newer ones are hashed; waiting here bounds the disk use."""
        if self._num_bytes <= INLINE_BYTES:
            return
        deadline = time.monotonic() + HASH_PATIENCE_S
        is_stopping = self._attempt.control.requests.stop.is_set
        while self._num_waiting() >= MOST_UNHASHED and time.monotonic() < deadline and not is_stopping():
            time.sleep(LOOK_EVERY_S)

    def _check_room(self) -> None:
        """Raises LonghaulError (DISK) where a checkpoint as large as the last one does not fit, before it is begun."""
        free = durable.free_bytes(self._attempt.run.root)
        if free < self._num_bytes:
            raise LonghaulError(
                f"a checkpoint of {self._num_bytes / 1e6:,.0f} MB does not fit: {free / 1e6:,.0f} MB are free in "
                f"{self._attempt.run.root}",
                kept=checkpoint.KEPT,
                next_command=f"df -h {self._attempt.run.root}   (free some space), then: python -m orchestrator run",
                exit_code=ExitCode.DISK,
            )

    def _num_waiting(self) -> int:
        assert self._attempt.saved is not None
        try:
            with closing(Reader.open(self._attempt.run)) as reader:
                return num_unhashed(reader.checkpoints(), self._attempt.saved.checkpoint_id)
        except (LonghaulError, sqlite3.Error):
            return 0  # the master reports problems of the store

    def _write(self, directory: Path) -> None:
        self._registry.save(directory)
        self._write_static(directory)

    def _message(self, id_: int) -> Message:
        saved = self._attempt.saved
        assert saved is not None
        return Message(
            type="checkpointed",
            id=id_,
            step=saved.step,
            path=saved.path,
            digest=saved.digest,
        )
