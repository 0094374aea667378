"""Hashes one checkpoint at a time in a thread of its own, so that the loop goes on meanwhile.

The thread only reads files and says what it found. It has no access to the store: the loop writes down the result.
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
"""The worker's threads come first."""
CLOSE_S = 2.0
"""Longest wait for a read in progress when the master leaves. A disk that hangs must not hold up a stop."""


class _Cancelled(Exception):
    """The master leaves; the next one hashes it."""


@dataclass(frozen=True)
class Hashed:
    """What was found. Both texts empty: every byte is as it was written."""

    facts: CheckpointFacts
    damage: str = ""
    """Why it must not be used."""
    obstacle: str = ""
    """Why it could not be read at all, which says nothing about its bytes: permissions, too many open files."""


class Hasher:
    """At most one checkpoint is read at a time, in pieces of checkpoint.READ_BYTES."""

    def __init__(self, run: RunDir, wake: Callable[[], None]) -> None:
        """wake: called from the thread when a result is there; ends the loop's wait."""
        self.run = run
        self.current: CheckpointFacts | None = None
        """What is being hashed, until `take` has returned the result."""
        self._wake = wake
        self._result: Hashed | None = None
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, facts: CheckpointFacts) -> None:
        """Begin; nothing else may be in progress."""
        assert self.current is None, "one at a time"
        self.current, self._result = facts, None
        # A daemon, so that a read which never returns cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, args=(facts,), name="hash", daemon=True)
        self._thread.start()

    def take(self) -> Hashed | None:
        """The result, once; None while there is none."""
        found, self._result = self._result, None
        if found is not None:
            self.current = None
        return found

    def close(self) -> None:
        """Give up what is in progress, within one piece."""
        self._cancelled.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _work(self, facts: CheckpointFacts) -> None:
        # Signals belong to the main thread: only there do they end the loop's wait at once.
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
                return Hashed(facts, damage="another checkpoint stands in its place")
        except Damaged as damaged:
            return Hashed(facts, damage=damaged.reason)
        except (LonghaulError, OSError) as error:
            return Hashed(facts, obstacle=str(error))
        return Hashed(facts)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise _Cancelled
