"""The life of one attempt, from the master's side: planned, told to start, heard, closed.

A kill between any two lines of `start` leaves something that recovery knows.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import msgspec

from orchestrator import worker_pool
from orchestrator.checkpoint_request import CheckpointRequest
from orchestrator.commit import STOPPED, Ended, Ledger
from orchestrator.deadlines import STEPS_TIMED, StepTimes
from orchestrator.display.screen import Screen
from orchestrator.ingest import ingest, ingest_all
from orchestrator.schedule import Train, Validate, asks_all_problems
from orchestrator.supervise import failure_class
from orchestrator.worker_pool import Active, WorkerPool
from profiles.errors import ExitCode
from profiles.load import profile_sha256
from profiles.schema import Profile
from state import durable
from state.checkpoint import Damaged
from state.crash import crash_point
from state.facts import Line
from state.history import AttemptFacts, CheckpointFacts, History
from state.layout import RunDir
from state.states import AttemptState
from state.store import Store
from workers.contract import CheckpointRef, Message, WorkerSpec


class Attempts:
    """Starts and closes attempts, and takes what they report into the store."""

    def __init__(
        self,
        run: RunDir,
        store: Store,
        profile: Profile,
        pool: WorkerPool,
        ledger: Ledger,
        checkpoint_request: CheckpointRequest,
        screen: Screen,
    ) -> None:
        self.run = run
        self.store = store
        self.profile = profile
        self.pool = pool
        self.ledger = ledger
        self.checkpoint_request = checkpoint_request
        self.screen = screen
        self.step_times = self.stored_step_times()

    def start(self, action: Train | Validate, history: History, now: float, utc: float) -> None:
        """Plan the attempt, take a worker, tell it to start."""
        role = "train" if isinstance(action, Train) else "validate"
        action = replace(action, attempt=self.run.free_attempt(action.cycle, action.attempt, role))
        if isinstance(action, Train):
            self.store.plan_cycle(action.cycle, action.phase, action.first_step, action.end_step, action.reseed, utc)
        worker = self.pool.take(now)
        crash_point("attempt.spawned")
        directory = self.run.attempt(action.cycle, action.attempt, role)
        durable.make_dir(directory.path)
        spec = self.spec(action, history, worker.token, directory.path)
        durable.write_file(directory.spec, msgspec.json.encode(spec))
        self.store.plan_attempt(action.cycle, role, action.attempt, worker.token, spec.first_step, spec.reductions, utc)
        crash_point("attempt.planned")
        # Before it is told to start: what a planned attempt did would be work that its row does not allow.
        self.store.set_attempt_process(worker.token, worker.handle.pid, worker.handle.started)
        self.store.set_attempt_state(worker.token, AttemptState.STARTING)
        self.pool.assign(worker, spec, directory, now)
        crash_point("attempt.started")
        facts = AttemptFacts(
            action.cycle,
            role,
            action.attempt,
            worker.token,
            AttemptState.STARTING,
            spec.first_step,
            spec.first_step - 1,
            False,
            pid=worker.handle.pid,
            process_started=worker.handle.started,
        )
        self.pool.active = Active(worker, facts, action, spec.end_step, directory, worker_pool.oom_kills())
        what = f"from step {spec.first_step}" if role == "train" else f"of step {spec.first_step - 1}"
        self.screen.say(f"cycle {action.cycle}: {role} attempt {action.attempt} {what} ({worker.handle})")

    def settle_problems(self, action: Train | Validate, history: History) -> None:
        """Before the first validation that can tell what it costs to ask all problems: whether the run does."""
        if isinstance(action, Train) or history.all_problems is not None:
            return
        choice, cost = asks_all_problems(history, self.profile), history.validation_cost
        if choice is None:
            return
        self.store.decide_problems(all_problems=choice)
        if choice and cost is not None:
            self.screen.say(
                f"validations ask all {cost.available:,} problems from now on: {cost.asked:,} took {cost.seconds:.0f} s"
            )

    def spec(self, action: Train | Validate, history: History, token: str, directory: Path) -> WorkerSpec:
        """All that the worker is told. A validation is a cycle of no steps at the head."""
        head = history.head
        train = action if isinstance(action, Train) else None
        return WorkerSpec(
            run_id=history.run_id,
            run_dir=str(self.run.root.resolve()),
            role="train" if train else "validate",
            cycle=action.cycle,
            attempt=action.attempt,
            token=token,
            attempt_dir=self.run.relative(directory),
            first_step=train.first_step if train else history.step + 1,
            end_step=train.end_step if train else history.step + 1,
            head=CheckpointRef(head.path, head.step, head.checkpoint_id, head.digest) if head else None,
            profile=self.profile,
            profile_sha256=profile_sha256(self.profile),
            isolate=train.isolate if train else False,
            reductions=train.reductions if train else 0,
            reseed=train.reseed if train else 0,
            all_problems=not train and bool(asks_all_problems(history, self.profile)),
        )

    def hear(self, active: Active, messages: list[Message], utc: float) -> list[CheckpointFacts]:
        """Act on what the worker says; returns the checkpoints that became the head."""
        types = {message.type for message in messages}
        if "started" in types:
            self.set_state(active, AttemptState.RUNNING)
        if types & {"done", "checkpointed"}:  # all of it: the steps of a checkpoint come before the checkpoint
            self.take(ingest_all(self.store, active.worker.token, active.directory.events))
        elif "event_hint" in types:
            self.take(ingest(self.store, active.worker.token, active.directory.events))
        saved = [message for message in messages if message.type == "checkpointed" and message.path]
        return [facts for message in saved if (facts := self.take_checkpoint(active, message, utc)) is not None]

    def take(self, lines: list[Line]) -> None:
        """Lines that were just ingested: for the deadlines, and for the screen."""
        self.step_times.take(lines)
        self.screen.take(lines)

    def stored_step_times(self) -> StepTimes:
        """Of the store: without steps that a dead attempt did and its successor does again."""
        return StepTimes(self.ledger.reader.step_seconds(STEPS_TIMED))

    def take_checkpoint(self, active: Active, message: Message, utc: float) -> CheckpointFacts | None:
        """A worker says that a checkpoint is durable: believe it only after verifying, then make it the head."""
        try:
            facts = self.ledger.commit_checkpoint(self.run.root / message.path, active.end_step, utc)
        except Damaged as error:
            self.screen.say(f"checkpoint {Path(message.path).name} does not verify ({error}); the head stays")
            return None
        if facts.checkpoint_id != active.newest:
            active.newest = facts.checkpoint_id
            self.screen.say(f"checkpoint of step {facts.step} is durable ({facts.digest[:12]})")
            for path in self.ledger.prune():
                self.screen.note_pruned(path)
        if message.id:
            self.checkpoint_request.committed(facts)
        return facts

    def ask_to_stop(self, active: Active, now: float) -> None:
        """A train worker finishes its step; a validation is simply done again on resume."""
        if active.stop_sent:
            return
        active.stop_sent = True
        if isinstance(active.action, Validate):
            active.worker.abort(STOPPED, now, self.profile.timeouts.kill_s)
            return
        active.worker.watch = replace(active.worker.watch, stop_asked_at=now)
        active.worker.send(Message(type="stop", id=2))
        self.set_state(active, AttemptState.STOPPING)

    def set_state(self, active: Active, state: AttemptState) -> None:
        if active.state != state and active.state not in (AttemptState.STOPPING, AttemptState.HUNG):
            self.store.set_attempt_state(active.worker.token, state)
            active.state = state

    def close(self, active: Active, now: float, utc: float) -> Ended:
        """Its worker is gone: take what it left, close its row, and say how it ended."""
        worker = active.worker
        self.hear(active, worker.receive(now), utc)
        code = worker.exit_code or 0
        on_request = worker.kill is not None and not active.hung
        failure = ""
        if on_request and code in (ExitCode.ABORTED, -signal.SIGKILL):
            failure = STOPPED
        elif code or active.hung:
            oom_killed = worker_pool.oom_kills() > active.oom_kills_before
            failure = failure_class(code, hung=active.hung, oom_killed=oom_killed)
        crash_point("attempt.before_close")
        ended = self.ledger.close(active.attempt, active.end_step, exit_code=code, failure=failure, lost=False, now=utc)
        self.pool.active = None
        self.pool.discard(worker)
        self.step_times = self.stored_step_times()
        for line in ended.repairs:
            self.screen.say(line)
        self.screen.say(end_line(active, ended, code))
        return ended


def end_line(active: Active, ended: Ended, code: int) -> str:
    """One line for the log about an attempt that ended."""
    attempt = active.attempt
    head = f"cycle {attempt.cycle}: {attempt.role} attempt {attempt.attempt}"
    if ended.failure and ended.failure != STOPPED:
        return f"{head} failed: {ended.failure} (exit {code}) {ended.message}".rstrip()
    return f"{head} {ended.state}"
