"""The only writer of a run's facts. Each method is one transaction. Readers use `state.reader`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiles.metrics import LEARNABLE, NEW_EXAMPLES, PROPOSALS
from state import durable, event_kinds
from state.answers import insert_answers
from state.crash import crash_point
from state.database import WritingConnection, companions, remove_store
from state.facts import ConflictingEvent, Line, insert_event, insert_line
from state.history import AnswerBits, AttemptFacts, CheckpointFacts
from state.layout import RunDir
from state.opening import damaged
from state.reader import is_born
from state.requests import PAUSE, VALIDATE
from state.states import AttemptState, CycleState, RunState, check_attempt, check_cycle


@dataclass(frozen=True)
class NewRun:
    """The facts of a new run."""

    run_id: str
    name: str
    profile: str
    """Resolved profile, canonical JSON."""
    profile_sha256: str
    seed: int
    program_version: str
    now: float


@dataclass(frozen=True)
class NewAttempt:
    """The facts of an attempt when its row is made. is_asked: a validation that somebody asked for."""

    cycle: int
    role: str
    attempt: int
    token: str
    first_step: int
    reductions: int
    now: float
    is_asked: bool = False


class Store(WritingConnection):
    """The store of a run, open for writing. Use `Store.open`."""

    @classmethod
    def open(cls, run: RunDir, new: NewRun | None = None) -> Store:
        """Open the store, or create it from `new` if it holds no run. Raises what WritingConnection raises."""
        if new is not None and not is_born(run):
            cls._bear(run, new)
        return cls(run)

    @classmethod
    def _bear(cls, run: RunDir, new: NewRun) -> None:
        """Complete the store under another name, then rename it: a crash leaves no store or a complete one."""
        remove_store(run.unborn_store)
        store = cls(run, path=run.unborn_store)
        crash_point("store.created")
        store._insert_run(new)
        store.close()
        if any(path.exists() for path in companions(run.unborn_store)):
            raise damaged(run, "its first rows could not be written into the file")
        durable.fsync_file(run.unborn_store)
        remove_store(run.store)  # left by a crash of an earlier version; its journal must not be replayed
        crash_point("store.before_rename")
        with durable.explained("cannot create the store", run.store):
            run.unborn_store.rename(run.store)
        durable.fsync_dir(run.root)
        crash_point("store.born")

    def _insert_run(self, new: NewRun) -> None:
        with self.transaction():
            self.db.table("runs").insert(
                {
                    "run_id": new.run_id,
                    "name": new.name,
                    "profile": new.profile,
                    "profile_sha256": new.profile_sha256,
                    "seed": new.seed,
                    "program_version": new.program_version,
                    "state": RunState.RUNNING,
                    "created_at": new.now,
                    "heartbeat_at": new.now,
                }
            )

    # --- run -------------------------------------------------------------------------------------------------

    def set_run_state(self, state: RunState, reason: str, now: float) -> None:
        """A run that was stopped or has finished is no longer paused; a finished one owes no validation either."""
        with self.transaction():
            self.db.execute("UPDATE runs SET state=?, stop_reason=?, heartbeat_at=?", [state, reason, now])
            if state in (RunState.STOPPED, RunState.FINISHED, RunState.STAGNANT):
                self.db.execute("DELETE FROM requests WHERE kind=? OR ?<>?", [PAUSE, state, RunState.STOPPED])

    def forgive(self, failures: Iterable[AttemptFacts]) -> None:
        """Failures that no longer count: a person started the run again, or their cause is repaired."""
        with self.transaction():
            for one in failures:
                self.db.execute("UPDATE attempts SET forgiven=1 WHERE token=?", [one.token])

    def pause(self, reason: str, now: float) -> None:
        """Record that the run is to pause. Keeps the moment of an earlier request."""
        with self.transaction():
            self.db.execute("INSERT OR IGNORE INTO requests VALUES (?,0,?)", [PAUSE, now])
            self.db.execute("UPDATE runs SET state=?, stop_reason=?", [RunState.PAUSED, reason])

    def resume(self) -> None:
        with self.transaction():
            self.db.execute("DELETE FROM requests WHERE kind=?", [PAUSE])
            self.db.execute(
                "UPDATE runs SET state=?, stop_reason='' WHERE state=?", [RunState.RUNNING, RunState.PAUSED]
            )

    def ask_for_validation(self, step: int, now: float) -> None:
        """Record that the first checkpoint of `step` or later is to be scored. An earlier request stays as it is."""
        with self.transaction():
            self.db.execute("INSERT OR IGNORE INTO requests VALUES (?,?,?)", [VALIDATE, step, now])

    def withdraw_validation(self) -> None:
        with self.transaction():
            self.db.execute("DELETE FROM requests WHERE kind=?", [VALIDATE])

    def set_profile(self, profile: str, sha256: str) -> None:
        with self.transaction():
            self.db.execute("UPDATE runs SET profile=?, profile_sha256=?", [profile, sha256])

    def begin_anew(self, profile: str, sha256: str, seed: int) -> None:
        """Give a run without a checkpoint another profile, and drop the tasks and reductions found under the old one.

        Marks the run as failed, because restarting a failed run clears its failure count.
        """
        with self.transaction():
            assert not self.db.execute("SELECT 1 FROM checkpoints").fetchone(), "the run has a checkpoint"
            self.db.execute(
                "UPDATE runs SET profile=?, profile_sha256=?, seed=?, state=?, stop_reason='another profile'",
                [profile, sha256, seed, RunState.FAILED],
            )
            self.db.execute("DELETE FROM examples")
            self.db.execute("UPDATE attempts SET reductions=0")

    def heartbeat(self, now: float) -> None:
        with self.transaction(durable_commit=False):
            self.db.execute("UPDATE runs SET heartbeat_at=?", [now])

    # --- cycles and attempts ---------------------------------------------------------------------------------

    def plan_cycle(self, cycle: int, phase: str, first_step: int, end_step: int, reseed: int, now: float) -> None:
        """Insert the row of a new cycle unless it exists."""
        with self.transaction():
            self.db.execute(
                "INSERT OR IGNORE INTO cycles (cycle, phase, first_step, end_step, state, reseed, started_at)"
                " VALUES (?,?,?,?,?,?,?)",
                [cycle, phase, first_step, end_step, CycleState.PLANNED, reseed, now],
            )
            self.db.execute("UPDATE runs SET reseeds=max(reseeds, ?)", [reseed])

    def cycle_state(self, cycle: int) -> CycleState:
        row = self.db.execute("SELECT state FROM cycles WHERE cycle=?", [cycle]).fetchone()
        return CycleState(row[0])

    def _move_cycle(self, cycle: int, state: CycleState) -> None:
        old = self.cycle_state(cycle)
        if old != state:
            check_cycle(old, state)
            self.db.execute("UPDATE cycles SET state=? WHERE cycle=?", [state, cycle])

    def set_cycle_state(self, cycle: int, state: CycleState) -> None:
        with self.transaction():
            self._move_cycle(cycle, state)

    def plan_attempt(self, new: NewAttempt) -> None:
        """Insert the attempt as PLANNED and move its cycle to TRAINING or VALIDATING, in one commit.

        A validation that somebody asked for leaves the cycle's state as it is.
        """
        with self.transaction():
            self._insert_attempt(new)
            if not new.is_asked:
                self._move_cycle(new.cycle, CycleState.TRAINING if new.role == "train" else CycleState.VALIDATING)

    def restore_attempt(self, new: NewAttempt) -> None:
        """Insert the row of a past attempt. Its cycle becomes one in which such an attempt can be closed.

        In one commit: power may fail before the cycle's own state is restored, and the next start closes the attempt.
        CYCLE_EDGES does not apply.
        """
        state = CycleState.TRAINING if new.role == "train" or new.is_asked else CycleState.VALIDATING
        with self.transaction():
            self._insert_attempt(new)
            self.db.execute(
                "UPDATE cycles SET state=? WHERE cycle=? AND state<>?", [state, new.cycle, CycleState.COMMITTED]
            )

    def restore_cycle(self, cycle: int, state: CycleState) -> None:
        """Set the state that a cycle's files show. CYCLE_EDGES does not apply to a restored cycle."""
        with self.transaction():
            self.db.execute("UPDATE cycles SET state=? WHERE cycle=?", [state, cycle])

    def _insert_attempt(self, new: NewAttempt) -> None:
        self.db.table("attempts").insert(
            {
                "cycle": new.cycle,
                "role": new.role,
                "attempt": new.attempt,
                "token": new.token,
                "state": AttemptState.PLANNED,
                "first_step": new.first_step,
                "step_reached": new.first_step - 1,
                "reductions": new.reductions,
                "started_at": new.now,
            }
        )

    def attempt_state(self, token: str) -> AttemptState:
        return AttemptState(self.db.execute("SELECT state FROM attempts WHERE token=?", [token]).fetchone()[0])

    def set_attempt_state(self, token: str, state: AttemptState) -> None:
        with self.transaction(durable_commit=False):
            old = self.attempt_state(token)
            if old != state:
                check_attempt(old, state)
                self.db.execute("UPDATE attempts SET state=? WHERE token=?", [state, token])

    def set_attempt_process(self, token: str, pid: int, process_started: float) -> None:
        with self.transaction(durable_commit=False):
            self.db.execute("UPDATE attempts SET pid=?, process_started=? WHERE token=?", [pid, process_started, token])

    def close_attempt(
        self,
        token: str,
        state: AttemptState,
        *,
        exit_code: int | None,
        failure: str,
        message: str,
        step_reached: int,
        cycle_state: CycleState | None,
        now: float,
        exhausted: bool = False,
    ) -> None:
        """Write the attempt's final row and its cycle's next state, if given, in one commit."""
        with self.transaction():
            old = self.attempt_state(token)
            check_attempt(old, state)
            self.db.execute(
                "UPDATE attempts SET state=?, exit_code=?, failure=?, message=?, step_reached=max(step_reached,?),"
                " ended_at=? WHERE token=?",
                [state, exit_code, failure, message, step_reached, now, token],
            )
            cycle = self.db.execute("SELECT cycle FROM attempts WHERE token=?", [token]).fetchone()[0]
            if exhausted:
                self.db.execute("UPDATE cycles SET exhausted=1 WHERE cycle=?", [cycle])
            if cycle_state is not None:
                self._move_cycle(cycle, cycle_state)

    def commit_cycle(self, cycle: int, verdict: str, evidence: str, now: float) -> None:
        with self.transaction():
            self._move_cycle(cycle, CycleState.COMMITTED)
            self.db.execute(
                "UPDATE cycles SET verdict=?, evidence=?, committed_at=? WHERE cycle=?",
                [verdict, evidence, now, cycle],
            )

    # --- facts from workers ----------------------------------------------------------------------------------

    def ingest_offset(self, token: str) -> int:
        return int(self.db.execute("SELECT ingest_offset FROM attempts WHERE token=?", [token]).fetchone()[0])

    def ingest(self, token: str, lines: Sequence[Line], offset: int) -> list[Line]:
        """Store the lines and the offset of the next unread byte in one transaction. Returns the lines to show.

        A line that conflicts with a stored one is replaced by a `conflict` line; the stored version stays.
        """
        taken: list[Line] = []
        with self.transaction(durable_commit=False):
            cycle, role, attempt = self.db.execute(
                "SELECT cycle, role, attempt FROM attempts WHERE token=?", [token]
            ).fetchone()
            reached = 0
            for line in lines:
                try:
                    insert_line(self.db, cycle, role, attempt, line)
                except ConflictingEvent as conflict:
                    line = conflict.as_line()
                    insert_event(self.db, cycle, role, attempt, line)
                taken.append(line)
                reached = max(reached, line.step if line.type == event_kinds.STEP.name else 0)
            crash_point("ingest.before_offset")
            self.db.execute(
                "UPDATE attempts SET ingest_offset=?, step_reached=max(step_reached, ?) WHERE token=?",
                [offset, reached, token],
            )
        return taken

    # --- checkpoints -----------------------------------------------------------------------------------------

    def commit_checkpoint(
        self, checkpoint: CheckpointFacts, attempt: int, now: float, *, from_step: int | None = None
    ) -> None:
        """Set the new head, mark its steps as trained and update the cycle's totals, in one FULL commit. Idempotent.

        from_step: step of the last checkpoint before it whose steps count; None looks it up.
        """
        with self.transaction():
            if self.db.execute(
                "SELECT 1 FROM checkpoints WHERE checkpoint_id=? AND state='committed'", [checkpoint.checkpoint_id]
            ).fetchone():
                return
            if from_step is None:
                row = self.db.execute(
                    "WITH RECURSIVE line(parent, step, state) AS (SELECT parent, step, state FROM checkpoints"
                    " WHERE checkpoint_id=? UNION ALL SELECT c.parent, c.step, c.state FROM checkpoints c"
                    " JOIN line ON c.checkpoint_id=line.parent WHERE line.state='quarantined')"
                    " SELECT step FROM line WHERE state<>'quarantined'",
                    [checkpoint.parent],
                ).fetchone()
                from_step = int(row[0]) if row else 0
            self._insert_checkpoint(checkpoint, attempt, "committed", now)
            crash_point("commit.inside")
            self.db.execute("UPDATE runs SET head=?, heartbeat_at=?", [checkpoint.checkpoint_id, now])
            self.db.execute(
                "UPDATE steps SET trained=1 WHERE cycle=? AND attempt=? AND step>? AND step<=?",
                [checkpoint.cycle, attempt, from_step, checkpoint.step],
            )
            self.db.execute(
                "UPDATE attempts SET progressed=1 WHERE cycle=? AND role='train' AND attempt=?",
                [checkpoint.cycle, attempt],
            )
            self._total_cycle(checkpoint.cycle)

    def add_lost_checkpoint(self, checkpoint: CheckpointFacts, attempt: int, now: float) -> None:
        """Record a checkpoint that does not verify and never became the head: the next one names it as parent."""
        with self.transaction():
            self._insert_checkpoint(checkpoint, attempt, "quarantined", now)

    def _insert_checkpoint(self, checkpoint: CheckpointFacts, attempt: int, state: str, now: float) -> None:
        self.db.execute(
            "INSERT INTO checkpoints (checkpoint_id, parent, cycle, attempt, step, path, digest, bytes,"
            " is_cycle_end, state, verified, created_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            [
                checkpoint.checkpoint_id,
                checkpoint.parent,
                checkpoint.cycle,
                attempt,
                checkpoint.step,
                checkpoint.path,
                checkpoint.digest,
                checkpoint.bytes,
                checkpoint.is_cycle_end,
                state,
                checkpoint.verified,
                now,
            ],
        )

    def _total_cycle(self, cycle: int) -> None:
        self.db.execute(
            "UPDATE cycles SET (proposals, new_examples, learnable, train_s) = (SELECT"
            " coalesce(sum(json_extract(metrics, :proposals)), 0),"
            " coalesce(sum(json_extract(metrics, :new)), 0),"
            " coalesce(sum(json_extract(metrics, :learnable)), 0),"
            " coalesce(sum(seconds), 0.0) FROM steps WHERE cycle=:c AND trained=1) WHERE cycle=:c",
            {
                "c": cycle,
                "proposals": f"$.{PROPOSALS.name}",
                "new": f"$.{NEW_EXAMPLES.name}",
                "learnable": f"$.{LEARNABLE.name}",
            },
        )

    def walk_back(self, head: str, now: float) -> None:
        """Make an older checkpoint the head. Later steps no longer count; their cycles are trained again."""
        with self.transaction():
            step, cycle, is_end = self.db.execute(
                "SELECT step, cycle, is_cycle_end FROM checkpoints WHERE checkpoint_id=?", [head]
            ).fetchone()
            self.db.execute("UPDATE runs SET head=?, heartbeat_at=?", [head, now])
            self.db.execute("UPDATE steps SET trained=0 WHERE trained=1 AND step>?", [step])
            self.db.execute("DELETE FROM validations WHERE step>?", [step])
            first_undone = cycle + 1 if is_end else cycle
            self.db.execute(
                "DELETE FROM cycles WHERE cycle>? AND NOT EXISTS"
                " (SELECT 1 FROM attempts WHERE attempts.cycle=cycles.cycle)",
                [first_undone],
            )
            self.db.execute(
                "UPDATE cycles SET state=?, verdict='', evidence='', exhausted=0 WHERE cycle>=? AND state<>'planned'",
                [CycleState.TRAINING, first_undone],
            )
            for (undone,) in self.db.execute("SELECT cycle FROM cycles WHERE cycle>=?", [first_undone]).fetchall():
                self._total_cycle(undone)

    def set_verified(self, checkpoint_id: str) -> None:
        with self.transaction():
            self.db.execute("UPDATE checkpoints SET verified=1 WHERE checkpoint_id=?", [checkpoint_id])

    def set_checkpoint_state(self, checkpoint_id: str, state: str) -> None:
        """state: "deleting", "deleted" or "quarantined"."""
        with self.transaction():
            self.db.execute("UPDATE checkpoints SET state=? WHERE checkpoint_id=?", [state, checkpoint_id])

    def commit_validation(
        self,
        checkpoint_id: str,
        cycle: int,
        attempt: int,
        step: int,
        suites: dict[str, dict[str, Any]],
        now: float,
        answers: Mapping[str, Mapping[str, AnswerBits]] | None = None,
        *,
        is_asked: bool = False,
    ) -> None:
        """Store the scores, answer requests for them, and move the cycle to VALIDATED. Keeps earlier scores.

        answers: suite -> task -> bits. is_asked: somebody asked for this validation; the cycle's state stays.
        """
        with self.transaction():
            for suite, metrics in suites.items():
                mean = metrics["mean"]
                written = self.db.execute(
                    "INSERT OR IGNORE INTO validations VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                    [
                        checkpoint_id,
                        suite,
                        cycle,
                        attempt,
                        step,
                        float(mean["accuracy"]),
                        int(mean["correct"]),
                        int(mean["n"]),
                        json.dumps(metrics, sort_keys=True),
                        now,
                        is_asked,
                    ],
                ).rowcount
                if written:
                    insert_answers(self.db, checkpoint_id, suite, (answers or {}).get(suite, {}))
            self.db.execute("DELETE FROM requests WHERE kind=? AND step<=?", [VALIDATE, step])
            if not is_asked:
                self._move_cycle(cycle, CycleState.VALIDATED)

    def add_node_failures(self, nodes: Sequence[str], reason: str, cycle: int, attempt: int, now: float) -> None:
        with self.transaction():
            for node in nodes:
                self.db.execute("INSERT INTO node_failures VALUES (?,?,?,?,?)", [node, reason, cycle, attempt, now])

    def decide_problems(self, *, all_problems: bool) -> None:
        """Decide once per run: validations can be compared problem by problem only if they use the same problems."""
        with self.transaction():
            self.db.execute("UPDATE runs SET all_problems=? WHERE all_problems IS NULL", [all_problems])
