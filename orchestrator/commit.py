"""Makes work permanent: commits verified checkpoints as the head, and closes the rows of ended attempts.

The order is: ingest what the worker wrote, verify the files, then one FULL transaction. A kill in between leaves a
checkpoint directory without a row, which `adopt` finds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from orchestrator import pointers
from orchestrator.ingest import drop_torn_line, ingest_all
from profiles.disk import INLINE_BYTES
from profiles.schema import Retention
from state import durable, recover, retention, trash
from state.checkpoint import Manifest, read_manifest, verify
from state.crash import crash_point
from state.history import AnswerBits, AttemptFacts, CheckpointFacts
from state.layout import AttemptDir, RunDir
from state.reader import Reader
from state.recover import Kind, Repair
from state.states import AttemptState, CycleState
from state.store import Store
from workers.contract import CheckpointRef, Outcome, Result, TaskAnswers

STOPPED = "stopped"
"""Failure class of a worker that we ended on request. It does not count as a failure."""

WHAT_WAS_DONE = {
    Kind.ADOPT: "adopted",
    Kind.QUARANTINE: "DAMAGED, moved to quarantine:",
    Kind.DELETE: "removed",
    Kind.WALK_BACK: "DAMAGED HEAD, going on from",
}


@dataclass(frozen=True)
class Ended:
    """How an attempt ended."""

    state: AttemptState
    failure: str
    message: str
    exhausted: bool = False
    repairs: tuple[str, ...] = ()
    """One line per repair in checkpoints/."""


class Ledger:
    """Records the work of workers in the store. Needs no living worker."""

    def __init__(self, run: RunDir, store: Store, reader: Reader, rule: Retention) -> None:
        self.run = run
        self.store = store
        self.reader = reader
        self.rule = rule
        self.on_commit: Callable[[], None] = lambda: None
        """Called after each committed checkpoint or validation."""

    # --- checkpoints -----------------------------------------------------------------------------------------

    def commit_checkpoint(self, path: Path, end_step: int, now: float, *, is_hashed: bool = False) -> CheckpointFacts:
        """Verify the directory and make it the head. Idempotent. Raises state.checkpoint.Damaged.

        is_hashed: the caller has just verified every byte.
        """
        manifest = read_manifest(path)
        small = manifest.bytes <= INLINE_BYTES
        verify(path, deep=small)
        facts = facts_of(self.run, path, manifest, end_step, verified=small or is_hashed)
        crash_point("commit.before")
        self.store.commit_checkpoint(facts, manifest.attempt, now)
        crash_point("commit.after")
        self.publish()
        return facts

    def knows_parent(self, path: Path) -> bool:
        """Whether the checkpoint continues one that has a row, or is the first. Raises state.checkpoint.Damaged."""
        parent = read_manifest(path).parent
        return parent is None or self.reader.checkpoint(parent) is not None

    def publish(self) -> None:
        """Update latest.json and best.json."""
        pointers.publish(self.run, self.reader)
        self.on_commit()

    def adopt(self, now: float, live_tokens: Collection[str] = ()) -> list[str]:
        """Deal with every checkpoint directory that has no row: adopt the head's whole children, quarantine the
        rest, delete staging but that of `live_tokens`. Idempotent. Returns a line for each thing done."""
        history = self.reader.history()
        repairs = recover.plan_adoption(self.run, history.run_id, self.reader.checkpoints(), history.head, live_tokens)
        return [self.repair(repair, now) for repair in repairs]

    def recover_checkpoints(self, now: float) -> list[str]:
        """Like `adopt`, but also hash the head; if it is damaged, fall back to the newest checkpoint that verifies.

        No worker may be running. Returns one line per repair. Raises LonghaulError (STORE) if no checkpoint verifies.
        """
        history = self.reader.history()
        repairs = recover.plan_recovery(self.run, history.run_id, self.reader.checkpoints(), history.head)
        done = [self.repair(repair, now) for repair in repairs]
        head = self.reader.history().head
        if head is not None and not head.verified:
            self.store.set_verified(head.checkpoint_id)
        return done

    def unverified(self) -> list[CheckpointFacts]:
        """Committed checkpoints that are not fully hashed yet, oldest first."""
        return [facts for facts in self.reader.checkpoints() if facts.state == "committed" and not facts.verified]

    def repair(self, repair: Repair, now: float) -> str:
        """Apply one repair, in the store and on disk. Returns its log line."""
        if repair.kind == Kind.ADOPT:
            manifest = read_manifest(repair.path)
            self._ingest_attempt(manifest.cycle, manifest.attempt)
            self.commit_checkpoint(repair.path, self.reader.end_step(manifest.cycle), now, is_hashed=True)
        elif repair.kind == Kind.WALK_BACK:
            self.store.walk_back(repair.checkpoint_id, now)
            self.publish()
            head = self.reader.history().head
            whole = max(0, head.cycle - 1) if head is not None else 0  # of the head's own cycle a part may be missing
            self.store.backup(f"cycle-{whole:06d}.db")
        elif repair.kind == Kind.QUARANTINE and repair.checkpoint_id:
            self.store.set_checkpoint_state(repair.checkpoint_id, "quarantined")
        recover.apply(self.run, repair)
        done = "valid, but moved to quarantine:" if repair.is_whole else WHAT_WAS_DONE[repair.kind]
        return f"{done} {repair.path.name}: {repair.reason}"

    def _ingest_attempt(self, cycle: int, attempt: int) -> None:
        token = self.reader.token_of(cycle, "train", attempt)
        if token:
            ingest_all(self.store, token, self.run.attempt(cycle, attempt).events)

    def prune(self, read: CheckpointRef | None = None) -> list[str]:
        """Delete the checkpoints that retention does not keep, and rollouts of committed steps.

        read: one that a worker reads right now, which stays. Returns the checkpoints' paths.
        """
        history = self.reader.history()
        head = history.head
        if head is None:
            return []
        doomed = [facts for facts in self.doomed() if read is None or facts.checkpoint_id != read.checkpoint_id]
        for facts in doomed:
            self._delete(facts, head)
        trash.empty(self.run)
        if history.current is not None:
            self._drop_rollouts(history.current.cycle, head.step)
        return [facts.path for facts in doomed]

    def doomed(self) -> list[CheckpointFacts]:
        """The checkpoints that retention does not keep, and those whose deletion was begun."""
        head = self.reader.history().head
        if head is None:
            return []
        known = self.reader.checkpoints()
        best = {checkpoint_id: suite for suite, checkpoint_id in self.reader.best_checkpoints().items()}
        unkept = retention.to_delete(
            [kept_facts(facts, best) for facts in known if facts.state == "committed"],
            retention.Rule(self.rule.keep_ancestors, self.rule.keep_every),
            head.checkpoint_id,
            {facts.checkpoint_id: facts.parent for facts in known if facts.state == "quarantined"},
        )
        by_id = {facts.checkpoint_id: facts for facts in known}
        unfinished = [facts for facts in known if facts.state == "deleting"]
        return [*unfinished, *(by_id[entry.checkpoint_id] for entry in unkept)]

    def _delete(self, facts: CheckpointFacts, head: CheckpointFacts) -> None:
        self.store.set_checkpoint_state(facts.checkpoint_id, "deleting")
        crash_point("prune.marked")
        trash.discard(self.run, self.run.root / facts.path, head=self.run.root / head.path)
        self.store.set_checkpoint_state(facts.checkpoint_id, "deleted")

    def _drop_rollouts(self, cycle: int, head_step: int) -> None:
        """Delete rollouts up to the head, which are not needed again, except the last `keep_rollout_steps`."""
        keep_from = head_step - self.rule.keep_rollout_steps
        for number in range(cycle, -1, -1):
            folder, num_left = self.run.rollouts(number), 0
            with durable.explained("cannot remove old rollouts in", folder):
                if number < cycle and not folder.exists():
                    return  # the rollouts of all earlier cycles are gone too
                for file in folder.glob("step-*.jsonl"):
                    with suppress(ValueError):
                        if int(file.stem.removeprefix("step-")) <= keep_from:
                            file.unlink(missing_ok=True)
                        else:
                            num_left += 1
            if number < cycle and not num_left:
                shutil.rmtree(folder, ignore_errors=True)

    # --- attempts --------------------------------------------------------------------------------------------

    def close(
        self,
        attempt: AttemptFacts,
        end_step: int,
        *,
        exit_code: int | None,
        failure: str,
        lost: bool,
        now: float,
        text: str = "",
    ) -> Ended:
        """Close the row of an attempt whose process has ended.

        The files outweigh the exit code: a result with a valid checkpoint counts, however the worker exited.
        text: the launcher's account of the end, stored where the worker left none.
        """
        directory = self.run.attempt(attempt.cycle, attempt.attempt, attempt.role)
        torn = drop_torn_line(directory.events)
        ingest_all(self.store, attempt.token, directory.events)
        repairs = tuple(self.adopt(now))
        result = read_result(directory, attempt.token)
        if attempt.role == "validate":
            ended, cycle_state = self._validated(attempt, result, failure, lost, now)
        else:
            ended, cycle_state = self._trained(end_step, result, failure, lost)
        if ended.failure and not ended.message:
            ended = replace(ended, message=text)
        message = ended.message + (f" ({torn} bytes of a torn event dropped)" if torn else "")
        self.store.close_attempt(
            attempt.token,
            ended.state,
            exit_code=exit_code,
            failure=ended.failure,
            message=message,
            step_reached=result.last_step if result else 0,
            cycle_state=cycle_state,
            exhausted=ended.exhausted,
            now=now,
        )
        return replace(ended, repairs=repairs)

    def _trained(
        self, end_step: int, result: Result | None, failure: str, lost: bool
    ) -> tuple[Ended, CycleState | None]:
        head = self.reader.history().head
        complete = head is not None and head.step >= end_step - 1
        exhausted = result is not None and result.outcome == Outcome.EXHAUSTED
        if complete or (exhausted and head is not None and result is not None and head.step >= result.last_step):
            return Ended(AttemptState.SUCCEEDED, "", "", exhausted), CycleState.TRAINED
        if result is not None and result.outcome == Outcome.STOPPED:
            return Ended(AttemptState.STOPPED, "", ""), None
        if failure == STOPPED:
            return Ended(AttemptState.STOPPED, "", "stopped at once on request"), None
        return unfinished(result, failure, lost), None

    def _validated(
        self, attempt: AttemptFacts, result: Result | None, failure: str, lost: bool, now: float
    ) -> tuple[Ended, CycleState | None]:
        head = self.reader.history().head
        scored = result.checkpoint.checkpoint_id if result is not None and result.checkpoint is not None else ""
        is_of_head = head is not None and head.checkpoint_id == scored  # recovery may have walked back from it
        is_own = self.store.cycle_state(attempt.cycle) in (CycleState.VALIDATING, CycleState.VALIDATED)
        if result is not None and result.outcome == Outcome.DONE and result.validation and is_of_head:
            assert head is not None
            self.store.commit_validation(
                head.checkpoint_id,
                attempt.cycle,
                attempt.attempt,
                head.step,
                result.validation,
                now,
                answers_in(result),
                is_asked=not is_own,
            )
            self.publish()
            return Ended(AttemptState.SUCCEEDED, "", ""), None
        if failure == STOPPED:
            return Ended(AttemptState.STOPPED, "", "stopped on request; repeated on resume"), None
        return unfinished(result, failure, lost), None


def answers_in(result: Result) -> dict[str, dict[str, AnswerBits]]:
    """Suite -> task -> answer bits, as stored. (pure)"""
    return {suite: {task: bits_of(one) for task, one in tasks.items()} for suite, tasks in result.answers.items()}


def unfinished(result: Result | None, failure: str, lost: bool) -> Ended:
    """The ending of an attempt that did not finish its work."""
    if lost and result is None:
        return Ended(AttemptState.LOST, "", "found open at start-up, with its process gone")
    message = "\n".join(filter(None, [one_line(result.error), result.advice])) if result is not None else ""
    return Ended(AttemptState.FAILED, failure or "exit:0", message)


def bits_of(answers: TaskAnswers) -> AnswerBits:
    """Convert one digit per problem to one bit per problem. (pure)"""
    greedy, sampled = (int(digits[::-1], 2) if digits else 0 for digits in (answers.greedy, answers.sampled))
    return AnswerBits(answers.problems, greedy, sampled if answers.sampled else None)


def one_line(text: str) -> str:
    """Join a multi-line error, because the line after it must be the advice. (pure)"""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines).replace(":; ", ": ")


def read_result(directory: AttemptDir, token: str) -> Result | None:
    """The result in result.json, if it is valid and carries this attempt's token."""
    try:
        result = msgspec.json.decode(directory.result.read_bytes(), type=Result)
    except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError):
        return None
    return result if result.token == token else None


def facts_of(run: RunDir, path: Path, manifest: Manifest, end_step: int, *, verified: bool) -> CheckpointFacts:
    return CheckpointFacts(
        checkpoint_id=manifest.checkpoint_id(path),
        parent=manifest.parent,
        cycle=manifest.cycle,
        step=manifest.step,
        path=run.relative(path),
        digest=manifest.digest,
        bytes=manifest.bytes,
        verified=verified,
        is_cycle_end=manifest.step == end_step - 1,
    )


def kept_facts(facts: CheckpointFacts, best: dict[str, str]) -> retention.Kept:
    """The retention rule's view of a checkpoint. best: checkpoint_id -> suite."""
    return retention.Kept(
        checkpoint_id=facts.checkpoint_id,
        parent=facts.parent,
        cycle=facts.cycle,
        step=facts.step,
        bytes=facts.bytes,
        verified=facts.verified,
        is_cycle_end=facts.is_cycle_end,
        best_for=(best[facts.checkpoint_id],) if facts.checkpoint_id in best else (),
    )
