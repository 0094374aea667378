"""Runs one attempt from the master's side: plans it, starts its worker, processes its messages and closes it.

Recovery handles a kill between any two lines of `start`.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator import worker_pool
from orchestrator.attach import Running
from orchestrator.catch_up import pass_over
from orchestrator.checkpoint_request import CheckpointRequest
from orchestrator.commit import STOPPED, Ended, Ledger
from orchestrator.deadlines import STEPS_TIMED, StepTimes
from orchestrator.display.screen import Screen
from orchestrator.ingest import ingest, ingest_all
from orchestrator.job_time import SLOWEST_DISK
from orchestrator.nodes import SLOW_STEPS, NodeSteps, avoided, slow_reason
from orchestrator.records import new_attempt
from orchestrator.schedule import Train, Validate, asks_all_problems
from orchestrator.supervise import Worker, failure_class
from orchestrator.worker_pool import Active, Prepared, WorkerPool
from profiles.errors import ExitCode
from profiles.load import profile_sha256
from profiles.schema import Profile
from state import durable
from state.checkpoint import Damaged
from state.crash import crash_point
from state.facts import Line
from state.history import AttemptFacts, CheckpointFacts, History
from state.layout import AttemptDir, RunDir
from state.states import AttemptState
from state.store import Store
from workers.contract import CheckpointRef, Message, Role, WorkerSpec

Planned = TypeVar("Planned", bound=Train | Validate)


class Attempts:
    """Starts and closes attempts, and stores what they report."""

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
        self.doubtful: list[Path] = []
        """Checkpoints of the active worker that did not verify when it reported them."""
        self.read_steps()

    def start(self, action: Train | Validate, history: History, now: float, utc: float) -> None:
        """Plan the attempt, take a worker and start it."""
        self.doubtful = []
        if isinstance(action, Train):
            self.name_head(action, history)
        ahead = None
        is_for_next = isinstance(action, Validate) and not action.is_asked  # the cycle that follows this validation
        if not is_for_next and self.pool.loading is None:
            ahead = self.pool.take_prepared(lambda one: self.is_as_prepared(one, action, history))
        action, role = ahead.action if ahead is not None else self.numbered(action), role_of(action)
        if isinstance(action, Train):
            self.store.plan_cycle(action.cycle, action.phase, action.first_step, action.end_step, action.reseed, utc)
        worker = ahead.worker if ahead is not None else self.pool.take_standby()
        token = worker.token if worker is not None else self.pool.new_token()
        ordered = (ahead.directory, ahead.spec) if ahead is not None else self.ordered(action, history, token)
        directory, spec = ordered
        self.store.plan_attempt(new_attempt(spec, utc))
        crash_point("attempt.planned")
        avoid = avoided(self.ledger.reader.node_failures(), utc)
        worker = worker or self.pool.spawn(token, now, directory, avoid, self.ending_s(history))
        crash_point("attempt.spawned")
        # Store this before telling it to start: a row that says PLANNED must not have done any work.
        self.store.set_attempt_process(worker.token, worker.handle.pid, worker.handle.started)
        self.store.set_attempt_state(worker.token, AttemptState.STARTING)
        if ahead is not None:
            self.pool.release(ahead, now)
        else:
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
        if ahead is not None:  # it said that it started when nobody listened
            self.set_state(self.pool.active, AttemptState.RUNNING)
            self.take(self.pool.active, ingest_all(self.store, token, directory.events))

    def numbered(self, action: Planned) -> Planned:
        """With the number of an attempt whose directory does not exist yet."""
        return replace(action, attempt=self.run.free_attempt(action.cycle, action.attempt, role_of(action)))

    def ordered(self, action: Train | Validate, history: History, token: str) -> tuple[AttemptDir, WorkerSpec]:
        """The attempt's directory with its spec, made durable."""
        directory = self.run.attempt(action.cycle, action.attempt, role_of(action))
        durable.make_dir(directory.path)
        spec = self.spec(action, history, token, directory.path)
        durable.write_file(directory.spec, msgspec.json.encode(spec))
        return directory, spec

    def load(self, action: Train, history: History, now: float) -> None:
        """Let a standby load the model for an attempt, while the cycle before trains."""
        self.begin(action, history, now, waits_for_head=True)
        if (loading := self.pool.loading) is not None:
            self.screen.say(f"cycle {action.cycle}: loads ahead ({loading.worker.handle})")

    def prepare(self, action: Train, history: History, now: float) -> None:
        """Let an attempt begin ahead, while a cycle is validated: by the worker that has loaded the model for it, else
        by the standby."""
        self.name_head(action, history)
        if self.pool.prepared is None:
            self.begin(action, history, now)
        if (begun := self.pool.prepared) is not None:
            self.screen.say(f"cycle {action.cycle}: begun ahead ({begun.worker.handle})")

    def begin(self, action: Train, history: History, now: float, *, waits_for_head: bool = False) -> None:
        worker = self.pool.take_standby()
        if worker is None:
            return
        action = self.numbered(action)
        directory, spec = self.ordered(action, history, worker.token)
        self.pool.prepare(Prepared(worker, action, spec, directory, waits_for_head), now)

    def name_head(self, action: Train, history: History) -> None:
        """Tell the worker that loads ahead which checkpoint it trains from; without effect if none does. Dismisses it
        if it loads for another attempt than `action`."""
        loading = self.pool.loading
        if loading is None:
            return
        action = replace(action, attempt=loading.action.attempt)
        spec = self.spec(action, history, loading.worker.token, loading.directory.path)
        if action != loading.action or msgspec.structs.replace(spec, head=loading.spec.head) != loading.spec:
            self.pool.dismiss_prepared()
            return
        durable.write_file(loading.directory.spec, msgspec.json.encode(spec))
        crash_point("ahead.named")
        self.pool.name_head(spec)

    def is_as_prepared(self, ahead: Prepared, action: Train | Validate, history: History) -> bool:
        """Whether `action` is the attempt that was started ahead, with the same spec."""
        if not isinstance(action, Train) or replace(action, attempt=ahead.action.attempt) != ahead.action:
            return False
        return self.spec(ahead.action, history, ahead.worker.token, ahead.directory.path) == ahead.spec

    def ending_s(self, history: History) -> float:
        """Seconds that the longest of the last steps and a checkpoint on a slow disk take; 0: no step is known."""
        if not self.step_times.longest_s:
            return 0.0
        return self.step_times.longest_s + (history.head.bytes / SLOWEST_DISK if history.head is not None else 0.0)

    def go_on(self, running: Running, history: History, now: float) -> None:
        """Take over the worker of an earlier master in the middle of its attempt."""
        attempt = running.attempt
        directory = self.run.attempt(attempt.cycle, attempt.attempt, attempt.role)
        spec = msgspec.json.decode(directory.spec.read_bytes(), type=WorkerSpec)
        action: Train | Validate = Validate(attempt.cycle, attempt.attempt)
        if attempt.role == "train":
            phase = history.current.phase if history.current is not None else "train"
            action = Train(attempt.cycle, attempt.attempt, phase, spec.first_step, spec.end_step, spec.reseed)
        worker = Worker(running.launcher, running.started, directory.log, now)
        worker.watch = replace(worker.watch, started_at=now, first_step=spec.first_step, is_to_pause=None)
        self.pool.active = Active(worker, attempt, action, spec.end_step, directory, worker_pool.oom_kills())
        self.pool.active.state = attempt.state
        if attempt.state == AttemptState.PLANNED:  # its master died between the submission and the next line
            self.store.set_attempt_process(worker.token, worker.handle.pid, worker.handle.started)
            self.store.set_attempt_state(worker.token, AttemptState.STARTING)
            self.pool.active.state = AttemptState.STARTING
        self.screen.say(f"cycle {attempt.cycle}: {attempt.role} attempt {attempt.attempt} goes on ({worker.handle})")

    def record_problems(self, action: Train | Validate, history: History) -> None:
        """Decide, once, whether validations ask all problems, as soon as the cost of that is known."""
        if isinstance(action, Train) or action.is_asked or history.all_problems is not None:
            return
        choice, cost = asks_all_problems(history, self.profile), history.validation_cost
        if choice is None:
            return
        self.store.decide_problems(all_problems=choice)
        if choice and cost is not None:
            self.screen.say(
                f"validations use all {cost.available:,} problems from now on: {cost.asked:,} took {cost.seconds:.0f} s"
            )

    def spec(self, action: Train | Validate, history: History, token: str, directory: Path) -> WorkerSpec:
        """The worker's spec. A validation is a cycle without steps at the head."""
        head = history.head
        train = action if isinstance(action, Train) else None
        is_asked = isinstance(action, Validate) and action.is_asked
        all_problems = history.all_problems if is_asked else asks_all_problems(history, self.profile)
        return WorkerSpec(
            run_id=history.run_id,
            run_dir=str(self.run.root.resolve()),
            role=role_of(action),
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
            all_problems=not train and bool(all_problems),
            asked=is_asked,
        )

    def hear(self, active: Active, messages: list[Message], utc: float) -> list[CheckpointFacts]:
        """Process messages from the worker. Returns the checkpoints that became the head."""
        types = {message.type for message in messages}
        if "started" in types:
            self.set_state(active, AttemptState.RUNNING)
        if types & {"done", "checkpointed"}:  # ingest everything: a checkpoint's steps must be stored before it
            self.take(active, ingest_all(self.store, active.worker.token, active.directory.events))
        elif "event_hint" in types:
            self.take(active, ingest(self.store, active.worker.token, active.directory.events))
        self.note_slow_nodes(active, utc)
        saved = [message for message in messages if message.type == "checkpointed" and message.path]
        return [facts for message in saved if (facts := self.take_checkpoint(active, message, utc)) is not None]

    def take(self, active: Active, lines: list[Line]) -> None:
        """Pass newly ingested lines of an attempt to the deadlines and the screen. The steps among them are finished,
        whatever its last heartbeat has told."""
        active.worker.watch = active.worker.watch.with_steps(lines)
        self.step_times.take(lines)
        self.node_steps.take(lines)
        self.screen.take(lines)

    def read_steps(self) -> None:
        """Read the last steps from the store, which excludes those of a dead attempt that its successor repeats."""
        self.step_times = StepTimes(self.ledger.reader.step_seconds(STEPS_TIMED))
        has_nodes = self.profile.run.hosts > 1
        self.node_steps = NodeSteps(one.metrics for one in self.ledger.reader.steps(SLOW_STEPS) if has_nodes)

    def take_checkpoint(self, active: Active, message: Message, utc: float) -> CheckpointFacts | None:
        """Verify the checkpoint that a worker reports as durable, and make it the head."""
        path = self.run.root / message.path
        try:
            self.settle_doubtful(path, active.end_step, utc)
            facts = self.ledger.commit_checkpoint(path, active.end_step, utc)
        except Damaged as error:
            self.doubtful.append(path)
            self.screen.say(f"checkpoint {path.name} does not verify ({error.reason}); the head stays")
            return None
        if facts.checkpoint_id != active.newest:
            active.newest = facts.checkpoint_id
            self.screen.say(f"checkpoint of step {facts.step} is durable ({facts.digest[:12]})")
            loading = self.pool.loading
            for pruned in self.ledger.prune(loading.spec.head if loading is not None else None):
                self.screen.note_pruned(pruned)
        if message.id:
            self.checkpoint_request.committed(facts)
        return facts

    def settle_doubtful(self, child: Path, end_step: int, utc: float) -> None:
        """Look again at what did not verify, now that the worker went on from it: commit it, or put it away.

        Raises Damaged if the child's own manifest cannot be read.
        """
        if not self.doubtful or self.ledger.knows_parent(child):
            return
        doubtful, self.doubtful = self.doubtful, []
        for path in doubtful:
            try:
                self.ledger.commit_checkpoint(path, end_step, utc)
            except Damaged as error:
                pass_over(self.ledger, path, error.reason, utc)

    def ask_to_stop(self, active: Active, now: float) -> None:
        """Ask a train worker to stop after its step. A validation is aborted: it is repeated on resume."""
        if active.stop_sent:
            return
        active.stop_sent = True
        if isinstance(active.action, Validate):
            active.worker.abort(STOPPED, now, self.profile.timeouts.kill_s)
            return
        active.worker.watch = replace(active.worker.watch, stop_asked_at=now)
        active.worker.send(Message(type="stop", id=2))
        self.set_state(active, AttemptState.STOPPING)

    def note_failed_nodes(self, active: Active, utc: float) -> None:
        """Record, once, which nodes have failed under the worker."""
        life, attempt = active.worker.life, active.attempt
        if new := [node for node in life.nodes if node not in active.failed_nodes]:
            active.failed_nodes += new
            self.store.add_node_failures(new, life.text, attempt.cycle, attempt.attempt, utc)
            self.screen.say(f"left out from now on: {', '.join(new)} ({life.text})")

    def note_slow_nodes(self, active: Active, utc: float) -> None:
        """Record which nodes hold the others up, unless they are avoided already. The attempt goes on with them."""
        if not (slow := self.node_steps.slow):
            return
        known, attempt = avoided(self.ledger.reader.node_failures(), utc), active.attempt
        for node, times in slow.items():
            if node not in (*known.failed, *known.slow):
                self.store.add_node_failures([node], slow_reason(times), attempt.cycle, attempt.attempt, utc)
                self.screen.say(f"{node} is {slow_reason(times)}; the next job leaves it out if it can")

    def set_state(self, active: Active, state: AttemptState) -> None:
        if active.state != state and active.state not in (AttemptState.STOPPING, AttemptState.HUNG):
            self.store.set_attempt_state(active.worker.token, state)
            active.state = state

    def close(self, active: Active, now: float, utc: float) -> Ended:
        """Store what the ended worker left, close the attempt's row and report how it ended."""
        worker = active.worker
        self.hear(active, worker.receive(now), utc)
        code = worker.exit_code or 0
        on_request = worker.kill is not None and not active.hung
        failure = ""
        if on_request and code in (ExitCode.ABORTED, -signal.SIGKILL):
            failure = STOPPED
        elif code or active.hung:
            oom_killed = worker_pool.oom_kills() > active.oom_kills_before
            failure = failure_class(code, hung=active.hung, oom_killed=oom_killed, cause=worker.life.cause)
        crash_point("attempt.before_close")
        ended = self.ledger.close(
            active.attempt,
            active.end_step,
            exit_code=code,
            failure=failure,
            lost=False,
            now=utc,
            text=worker.life.text,
        )
        self.pool.active = None
        self.pool.discard(worker)
        if failure:
            self.pool.dismiss_prepared()  # what follows has the memory for itself
        self.note_failed_nodes(active, utc)
        self.read_steps()
        for line in ended.repairs:
            self.screen.say(line)
        self.screen.say(end_line(active, ended, code))
        return ended


def role_of(action: Train | Validate) -> Role:
    """(pure)"""
    return "train" if isinstance(action, Train) else "validate"


def end_line(active: Active, ended: Ended, code: int) -> str:
    """The log line for an ended attempt."""
    attempt = active.attempt
    head = f"cycle {attempt.cycle}: {attempt.role} attempt {attempt.attempt}"
    if ended.failure and ended.failure != STOPPED:
        return f"{head} failed: {ended.failure} (exit {code}) {ended.message}".rstrip()
    return f"{head} {ended.state}"
