"""Hashes committed checkpoints in the background, and acts on the result: prune, quarantine or walk back.

A large checkpoint becomes the head once its file sizes match; its bytes are hashed here, while the loop goes on. The
queue is the store itself: committed but unverified checkpoints, newest first. It survives the master, and a checkpoint
pruned while waiting is never read. When none waits, those that are kept are read again, slowly (scrubbing).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.attempts import Attempts
from orchestrator.hashing import Hashed, Hasher
from orchestrator.schedule import Train
from orchestrator.signals import Signals
from orchestrator.worker_pool import Active
from profiles.errors import ExitCode
from state.crash import crash_point
from state.history import CheckpointFacts, History
from state.recover import Kind, Repair

SCRUB_AGAIN_S = 86400.0
"""From one scrub of a checkpoint to its next."""
NEVER = -math.inf


def next_to_scrub(kept: Sequence[CheckpointFacts], read_at: Mapping[str, float], now: float) -> CheckpointFacts | None:
    """The checkpoint that was read longest ago, if that is a day; of those never read, the newest. (pure)

    read_at: checkpoint_id -> monotonic seconds; NEVER.
    """
    due = [facts for facts in kept if now - read_at[facts.checkpoint_id] >= SCRUB_AGAIN_S]
    return min(due, key=lambda facts: (read_at[facts.checkpoint_id], -facts.step), default=None)


class Verifier:
    """Belongs to one master. `turn` never blocks, except for a walk back, when nothing else could run anyway."""

    def __init__(self, attempts: Attempts, signals: Signals) -> None:
        self.attempts = attempts
        self.ledger = attempts.ledger
        self.screen = attempts.screen
        self.hasher = Hasher(attempts.run, signals.wake)
        self.damaged: Hashed | None = None
        """The damage to the head, which stays the head until another checkpoint can replace it."""
        self.unreadable: set[str] = set()
        """Ids of checkpoints that could not be read; the next master tries again."""
        self.doubted: set[str] = set()
        """Tokens of attempts that refused their input, after which the head was hashed again."""
        self._seen_head: str | None = ""
        self._is_idle = False
        """Whether there is nothing to hash until the head changes."""
        self.scrub_mb_per_s = attempts.profile.retention.scrub_mb_per_s
        self._read_at: dict[str, float] | None = None
        """Monotonic time at which every byte of a checkpoint was last read, by its id. None before the first look."""
        self._look_again_at = NEVER

    def turn(self, history: History, active: Active | None, now: float, utc: float) -> History:
        """Process a result and start the next. Returns the history, reloaded if the store has changed."""
        head_id = history.head.checkpoint_id if history.head else None
        if head_id != self._seen_head:
            self._seen_head, self._is_idle = head_id, False
        found = self.hasher.take()
        has_changed = found is not None and self.judge(found, history, now)
        if self.damaged is not None:
            has_changed |= self.replace_head(self.damaged, history, active, now, utc)
        if not self._is_idle:
            self.hash_next(now)
        elif self.hasher.current is None and self.scrub_mb_per_s and now >= self._look_again_at:
            self.scrub_next(now)
        return self.ledger.reader.history() if has_changed else history

    def hash_next(self, now: float) -> None:
        """Start the newest: once it is verified, older ones may be pruned unread."""
        if self.hasher.current is not None and not self.hasher.is_scrub:
            return
        known_bad = {self.damaged.facts.checkpoint_id} if self.damaged is not None else set()
        waiting = [
            facts for facts in self.ledger.unverified() if facts.checkpoint_id not in self.unreadable | known_bad
        ]
        self._is_idle = not waiting
        if waiting:
            self.hasher.give_up_scrub()
            if self.hasher.current is None:
                self.hasher.start(waiting[-1])

    def scrub_next(self, now: float) -> None:
        """Start to read the next checkpoint again, or say when to look for one."""
        kept = [
            facts
            for facts in self.ledger.reader.checkpoints()
            if facts.state == "committed" and facts.verified and facts.checkpoint_id not in self.unreadable
        ]
        # What is there at the first look may be old; what comes later was hashed by this master.
        before, of_new = ({}, NEVER) if self._read_at is None else (self._read_at, now)
        self._read_at = {facts.checkpoint_id: before.get(facts.checkpoint_id, of_new) for facts in kept}
        facts = next_to_scrub(kept, self._read_at, now)
        if facts is not None:
            self._read_at[facts.checkpoint_id] = now
            self.hasher.start(facts, scrub_mb_per_s=self.scrub_mb_per_s)
        else:
            self._look_again_at = min(self._read_at.values(), default=now) + SCRUB_AGAIN_S

    def judge(self, found: Hashed, history: History, now: float) -> bool:
        """Act on a result. Returns whether the store has changed."""
        facts = self.ledger.reader.checkpoint(found.facts.checkpoint_id)
        if facts is None or facts.state != "committed":
            return False  # pruned or quarantined while it was read
        self._is_idle = False
        name = Path(facts.path).name
        if found.obstacle:
            self.unreadable.add(facts.checkpoint_id)
            self.screen.say(f"checkpoint {name} could not be hashed ({found.obstacle}); the next start tries again")
            return False
        if not found.damage and facts.verified:
            return False
        if not found.damage:
            crash_point("hash.done")
            self.ledger.store.set_verified(facts.checkpoint_id)
            for path in self.ledger.prune():
                self.screen.note_pruned(path)
            return True
        if history.head is None or facts.checkpoint_id != history.head.checkpoint_id:
            self.quarantine(found)
            return True
        self.damaged = found
        self.screen.say(f"the head {name} is DAMAGED: {found.damage}")
        if (worker := self.attempts.pool.train_worker) is not None:
            self.screen.say("the worker still has the state: its next checkpoint replaces the head")
            self.attempts.checkpoint_request.ask(worker, history.head, now)
        return False

    def quarantine(self, found: Hashed) -> None:
        path = self.attempts.run.root / found.facts.path
        repair = Repair(Kind.QUARANTINE, path, found.damage, found.facts.checkpoint_id)
        self.screen.say(self.ledger.repair(repair, 0.0))

    # --- a head that is damaged --------------------------------------------------------------------------------

    def replace_head(self, bad: Hashed, history: History, active: Active | None, now: float, utc: float) -> bool:
        """Take one step towards a usable head. Returns whether the store has changed.

        A train worker still has the state in memory, so its next checkpoint becomes the head and no step is lost.
        Without a train worker, the run falls back to the newest checkpoint that verifies.
        """
        if history.head is None or history.head.checkpoint_id != bad.facts.checkpoint_id:
            self.quarantine(bad)
            self.damaged = None
            return True
        if active is None:
            self.walk_back(history, utc)
            return True
        if not isinstance(active.action, Train):
            self.attempts.ask_to_stop(active, now)
        return False

    def walk_back(self, history: History, utc: float) -> None:
        """Recover as at a start. Hashes in the loop, because nothing can run before a valid checkpoint is found.

        Raises LonghaulError (STORE), without touching any file, if no checkpoint verifies.
        """
        for line in self.ledger.recover_checkpoints(utc):
            self.screen.say(line)
        self.damaged = None
        refused = [failure for failure in history.failures if failure.failure == ExitCode.INPUT.name]
        self.ledger.store.forgive(refused)  # they failed because their head was damaged

    # --- queries from the loop ---------------------------------------------------------------------------------

    def is_head_in_doubt(self, history: History) -> bool:
        """Whether the head must be hashed before the run may end by itself.

        True if it is not hashed yet, or if the last attempt refused its input and the head may be the cause.
        """
        head, failure = history.head, history.failures[-1] if history.failures else None
        if head is None:
            return False
        if failure is not None and failure.failure == ExitCode.INPUT.name and failure.token not in self.doubted:
            self.hasher.give_up_scrub()
            if self.hasher.current is None:
                self.doubted.add(failure.token)
                self.hasher.start(head)
            return True
        current = None if self.hasher.is_scrub else self.hasher.current
        if current is not None and current.checkpoint_id == head.checkpoint_id:
            return True
        return not head.verified and head.checkpoint_id not in self.unreadable

    def close(self) -> None:
        self.hasher.close()
