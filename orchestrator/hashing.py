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
from functools import partial

from profiles.errors import LonghaulError
from state.checkpoint import READ_BYTES, Damaged, Manifest, verify
from state.crash import crash_point
from state.history import CheckpointFacts
from state.layout import RunDir

NICENESS = 5
"""Lower priority than the worker's threads."""
CLOSE_S = 2.0
"""How long closing waits for a read in progress. A hanging disk must not block a stop."""


class _Cancelled(Exception):
    """The master is exiting, or something more urgent waits; the checkpoint is hashed another time."""


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
        self.is_scrub = False
        """Whether the one in progress was hashed before and is only looked after."""
        self._wake = wake
        self._result: Hashed | None = None
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, facts: CheckpointFacts, *, scrub_mb_per_s: float = 0.0) -> None:
        """Start hashing; no other hashing may be in progress.

        scrub_mb_per_s: read what the disk holds, not what memory keeps of it, and no more than so many MB each second;
        0: at full speed, from wherever.
        """
        assert self.current is None, "one at a time"
        self.current, self.is_scrub, self._result = facts, scrub_mb_per_s > 0, None
        self._cancelled = threading.Event()
        pause_s = READ_BYTES / (scrub_mb_per_s * 1e6) if scrub_mb_per_s else 0.0
        work = partial(self._work, facts, self._cancelled, pause_s)
        # A daemon thread, so that a read that never returns cannot keep the process alive.
        self._thread = threading.Thread(target=work, name="hash", daemon=True)
        self._thread.start()

    def take(self) -> Hashed | None:
        """The result, returned once; None before it is ready."""
        found, self._result = self._result, None
        if found is not None:
            self.current = None
        return found

    def give_up_scrub(self) -> None:
        """Make room for a checkpoint that was never hashed. Waits for the current chunk."""
        if self.current is not None and self.is_scrub and self._result is None and self._end():
            self.current = None

    def close(self) -> None:
        """Cancel the hashing in progress after the current chunk."""
        self._end()

    def _end(self) -> bool:
        """Whether no thread is left, and so no result can come."""
        self._cancelled.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        return (self._thread is None or not self._thread.is_alive()) and self._result is None

    def _work(self, facts: CheckpointFacts, cancelled: threading.Event, pause_s: float) -> None:
        # Leave signals to the main thread, where they end the loop's wait at once.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

        def between() -> None:
            if cancelled.wait(pause_s):
                raise _Cancelled

        with suppress(_Cancelled):
            self._result = self._hashed(facts, between, is_scrub=pause_s > 0)
            self._wake()

    def _hashed(self, facts: CheckpointFacts, between: Callable[[], None], *, is_scrub: bool) -> Hashed:
        if not is_scrub:
            crash_point("hash.begun")
        return hashed(self.run, facts, between, from_disk=is_scrub)


def hashed(
    run: RunDir, facts: CheckpointFacts, between: Callable[[], None] = lambda: None, *, from_disk: bool = False
) -> Hashed:
    """Verify every byte of one checkpoint. between, from_disk: as in `state.checkpoint.verify`."""
    path = run.root / facts.path
    try:
        verify(path, deep=True, between=between, from_disk=from_disk)
        if Manifest.checkpoint_id(path) != facts.checkpoint_id:
            return Hashed(facts, damage="another checkpoint is in its place")
    except Damaged as damaged:
        return Hashed(facts, damage=damaged.reason)
    except (LonghaulError, OSError) as error:
        return Hashed(facts, obstacle=str(error))
    return Hashed(facts)
