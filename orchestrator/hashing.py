"""Hashes one checkpoint at a time in a thread, so that the loop can go on.

The thread only reads files and returns a result. It does not access the store; the loop records the result.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from profiles.errors import LonghaulError
from state.checkpoint import Damaged, Manifest, verify
from state.crash import crash_point
from state.history import CheckpointFacts
from state.layout import RunDir

NICENESS = 5
"""Lower priority than the worker's threads."""
CLOSE_S = 2.0
"""How long closing waits for a read in progress. A hanging disk must not block a stop."""


class _Cancelled(Exception):
    """The master is exiting; the next one hashes the checkpoint."""


@dataclass(frozen=True)
class Hashed:
    """The result. If both texts are empty, every byte is intact."""

    facts: CheckpointFacts
    damage: str = ""
    """Why the checkpoint must not be used."""
    obstacle: str = ""
    """Why it could not be read, such as permissions or too many open files. Does not mean damage."""


class Hasher:
    """Reads at most one checkpoint at a time, in chunks of checkpoint.READ_BYTES."""

    def __init__(self, run: RunDir, wake: Callable[[], None]) -> None:
        """wake: called from the thread when a result is ready, to end the loop's wait."""
        self.run = run
        self.current: CheckpointFacts | None = None
        """The checkpoint in progress, until `take` has returned its result."""
        self._wake = wake
        self._result: Hashed | None = None
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, facts: CheckpointFacts) -> None:
        """Start hashing; no other hashing may be in progress."""
        assert self.current is None, "one at a time"
        self.current, self._result = facts, None
        # A daemon thread, so that a read that never returns cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, args=(facts,), name="hash", daemon=True)
        self._thread.start()

    def take(self) -> Hashed | None:
        """The result, returned once; None before it is ready."""
        found, self._result = self._result, None
        if found is not None:
            self.current = None
        return found

    def close(self) -> None:
        """Cancel the hashing in progress after the current chunk."""
        self._cancelled.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _work(self, facts: CheckpointFacts) -> None:
        # Leave signals to the main thread, where they end the loop's wait at once.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        with suppress(_Cancelled):
            self._result = self._hashed(facts)
            self._wake()

    def _hashed(self, facts: CheckpointFacts) -> Hashed:
        path = self.run.root / facts.path
        crash_point("hash.begun")
        try:
            verify(path, deep=True, between=self._check)
            if Manifest.checkpoint_id(path) != facts.checkpoint_id:
                return Hashed(facts, damage="another checkpoint is in its place")
        except Damaged as damaged:
            return Hashed(facts, damage=damaged.reason)
        except (LonghaulError, OSError) as error:
            return Hashed(facts, obstacle=str(error))
        return Hashed(facts)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise _Cancelled
