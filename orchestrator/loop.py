"""The master's event loop: one turn() at a time, and the only wait.

turn() handles user requests and worker messages, reaps, checks deadlines, decides and acts. Pure functions decide what
comes next (schedule, stagnation, deadlines); Attempts and the Ledger record what happened.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import Any

from orchestrator.attach import Running
from orchestrator.attempts import Attempts
from orchestrator.checkpoint_request import CheckpointRequest
from orchestrator.clock import Clock
from orchestrator.commit import Ledger
from orchestrator.control import Client, Server
from orchestrator.cycle_files import remove_old_cycles
from orchestrator.deadlines import overdue
from orchestrator.display.screen import Screen
from orchestrator.display.wording import among, duration
from orchestrator.foreground import FOREGROUND
from orchestrator.launchers.job_end import Cause
from orchestrator.launchers.launcher import BatchLauncher
from orchestrator.live_facts import LiveFacts
from orchestrator.own_saves import due
from orchestrator.ready import wait_for_any
from orchestrator.run_directory import make_ballast
from orchestrator.schedule import (
    KILLED,
    Action,
    Commit,
    Paused,
    Stop,
    Train,
    Validate,
    Wait,
    ending_as_asked,
    expected_after,
    expected_after_training,
    followers_of,
    next_action,
)
from orchestrator.signals import Signals
from orchestrator.stagnation import verdict
from orchestrator.steering import Steering
from orchestrator.supervise import Worker
from orchestrator.systemd.manager import MANAGER
from orchestrator.verifying import Verifier
from orchestrator.worker_pool import Active, WorkerPool, may_wait_besides, reap_strangers, rotate_log, standby_is_due
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state.crash import crash_point
from state.history import AttemptFacts, History
from state.layout import RunDir
from state.reader import Reader
from state.states import AttemptState, CycleState, RunState, WrongTransition
from state.store import Store

SAME_PRESS_S = 0.3
"""Stop requests closer together than this count as one: a burst of signals, or a bouncing key."""
SECOND_PRESS_S = 10.0
STOPPED_BY_SIGNAL_S = 600.0
HEARTBEAT_ROW_S = 30.0
BACKUP_SHARE = 0.02
"""Of the time, at most, that goes into back-ups of the store: after each cycle, unless cycles are short."""
WAIT_S = 0.5
WAIT_WHILE_KILLING_S = 0.05
KEYS = {"p": "pause or resume", "v": "validate", "+": "+1", "-": "-1"}
"""Keys that steer the run -> what they ask for."""
AWAY_S = 3.0
"""A longer gap between two turns means that the master did not run: stopped by a signal, or starved."""


def job_note(worker: Worker) -> str:
    """What the scheduler reports about a job, for the user; empty: nothing."""
    life = worker.life
    return f"job {worker.handle.job}: {life.waits or life.text}" if life.waits or life.text else ""


class Master:
    """Drives one run until there is a reason to stop."""

    def __init__(
        self,
        run: RunDir,
        store: Store,
        reader: Reader,
        profile: Profile,
        clock: Clock,
        signals: Signals,
        screen: Screen,
        running: Running | None = None,
    ) -> None:
        """running: a worker of an earlier master that this one takes over."""
        self.store = store
        self.reader = reader
        self.profile = profile
        self.clock = clock
        self.signals = signals
        self.screen = screen
        self.history: History = reader.history()
        self.pool = WorkerPool(run, self.history.run_id, profile, store.incarnation)
        ledger = Ledger(run, store, reader, profile.retention)
        self.checkpoint_request = CheckpointRequest(screen.say)
        self.attempts = Attempts(run, store, profile, self.pool, ledger, self.checkpoint_request, screen)
        self.verifier = Verifier(self.attempts, signals)
        self.steering = Steering(store, self.attempts, self.pool, profile)
        if running is not None:
            self.attempts.go_on(running, self.history, clock.monotonic())
        self.saves_when_asked = worker_kind_of(profile).saves_when_asked
        self.live = LiveFacts()
        self.server = Server(run)
        self.forgive_what_was_seen()
        self.stop_asked_at: float | None = None
        self.stop_at_once = False
        self.unsaved: AttemptFacts | None = None
        """The attempt that was asked to stop and failed, with steps that are in no checkpoint."""
        self.stop_clients: list[Client] = []
        self.waiting_until: float | None = None  # monotonic: the wall clock may be set back while we wait
        self.waiting_for = ""
        """Reason for the wait; shown until the next worker starts."""
        self.waited = ""  # token of the failure behind the current or last wait
        self.cancelled = ""
        """The job that someone cancelled, in words. The master then stops: only a user may start another."""
        self.prepared_beside = -1
        """Cycle at whose end a worker was last started ahead for the next one: once for each."""
        self.loaded_beside = ""
        """Token of the training beside which a worker last loaded ahead: once for each."""
        self.next_backup_at = -math.inf
        self.last_turn = clock.monotonic()
        self.last_heartbeat_row = self.last_turn

    def forgive_what_was_seen(self) -> None:
        """Who starts a failed run again has seen its failures, so they no longer count."""
        state, is_paused = self.history.state, self.history.paused_at is not None
        if self.history.failures and (state is RunState.FAILED or (state is RunState.PAUSED and not is_paused)):
            self.store.forgive(self.history.failures)
            self.history = self.reader.history()

    # --- the loop --------------------------------------------------------------------------------------------

    def run(self) -> Stop:
        """Turn until the run ends; then store the reason and dismiss all workers and clients."""
        try:
            while (ending := self.turn(self.clock.monotonic())) is None:
                self.wait()
            self.store.set_run_state(ending.state, ending.reason, self.clock.utc())
        except BaseException:
            self.dismiss(keep_jobs=True)
            raise
        self.dismiss(keep_jobs=False)
        return ending

    def wait(self) -> None:
        """The only wait: for a signal, a message, a worker's end, a command, a key, or at most WAIT_S seconds."""
        workers = self.pool.workers()
        sources: list[Any] = [
            self.signals.wake_reader,
            *self.server.sockets(self.clock.monotonic()),
            *self.screen.keyboard(),
        ]
        sources += [worker.control for worker in workers if worker.hears]
        sources += [worker.ended for worker in workers]
        seconds = WAIT_WHILE_KILLING_S if any(worker.kill for worker in workers) else WAIT_S
        if self.waiting_until is not None:
            seconds = min(seconds, max(0.0, self.waiting_until - self.clock.monotonic()))
        wait_for_any(sources, seconds)

    def turn(self, now: float) -> Stop | None:
        self.forgive_our_own_absence(now)
        self.signals.drain()
        self.hear_people(now)
        self.hear_workers(now)
        self.reap(now)
        self.history = self.verifier.turn(self.history, self.pool.active, now, self.clock.utc())
        self.watch(now)
        self.steering.turn(self.history, now, self.clock.utc())
        ending = self.decide(now)
        note = self.note()
        self.screen.render(self.history, self.live.at(now, self.pool, waiting_until=self.waiting_until, note=note))
        self.keep_house(now)
        MANAGER.alive(now, self.condition(note))  # the last thing: only a turn that came to its end is a sign of life
        return ending

    def condition(self, note: str) -> str:
        """Where the run stands, in a line for a service manager."""
        step = self.pool.active.worker.step if self.pool.active is not None else self.history.step
        best = self.history.best_validation
        parts = [f"step {max(step, self.history.step)}, saved up to {self.history.step}"]
        parts += [f"best {best.suite} {best.accuracy:.3f}"] if best is not None else []
        return "; ".join([*parts, *([note] if note else [])])

    def note(self) -> str:
        """A short status note for the user; empty: none."""
        if self.waiting_for:
            return f"waiting: {self.waiting_for}"
        if self.pool.active is not None and (said := job_note(self.pool.active.worker)):
            return said
        if self.stop_asked_at is not None:
            return f"stopping {self.stops_where}"
        if steered := self.steering.note(self.history):
            return steered
        return "checkpoint requested" if self.checkpoint_request.is_sent else ""

    def forgive_our_own_absence(self, now: float) -> None:
        """If the master was stopped or starved, postpone every deadline by the time that it did not run."""
        away, self.last_turn = now - self.last_turn, now
        if away > AWAY_S:
            for worker in self.pool.workers():
                self.postpone(worker, away)

    def postpone(self, worker: Worker, seconds: float) -> None:
        """Postpone every deadline of a worker by the time in which it, or the master, did not run."""
        worker.watch = worker.watch.later_by(seconds)
        self.checkpoint_request.later_by(worker.token, seconds)

    def keep_house(self, now: float) -> None:
        """Periodically write a heartbeat to the store, remake the ballast file, and rotate logs."""
        if now - self.last_heartbeat_row > HEARTBEAT_ROW_S:
            self.last_heartbeat_row = now
            self.store.heartbeat(self.clock.utc())
            make_ballast(self.attempts.run)
            for worker in self.pool.workers():
                rotate_log(worker.log)

    # --- people ----------------------------------------------------------------------------------------------

    def hear_people(self, now: float) -> None:
        for key in self.screen.press(self.screen.read_keys()):
            self.obey(key, now)
        is_asked = False
        clients = self.server.poll(now)
        for number, client in enumerate(clients):
            try:
                is_asked |= self.serve(client, now)
            except LonghaulError as error:  # of the store: it ends this turn, and with it the connections
                for unserved in clients[number:]:
                    unserved.answer(ok=False, error=error.what)
                raise
        if self.signals.hangup:
            self.signals.hangup = 0
            self.screen.go_headless()
        for pressed_at in self.signals.take_stops():
            self.ask_to_stop(pressed_at)
        if is_asked or self.signals.checkpoint:
            self.signals.checkpoint = 0
            if self.saves_when_asked or self.pool.train_worker is None:
                self.checkpoint_request.ask(self.pool.train_worker, self.history.head, now)
            else:
                self.checkpoint_request.decline(f"this worker saves by itself: {self.next_save}", self.history.head)

    def serve(self, client: Client, now: float) -> bool:
        """Do what a command asks for. True if it asks for a checkpoint."""
        if client.command == "status":
            client.answer(ok=True, master_pid=os.getpid(), state=self.history.state)
        elif client.command == "checkpoint":
            self.checkpoint_request.join(client)
            return True
        elif client.command not in ("stop", "abort"):
            self.steer(client.command, client)
        else:  # a repeated stop command is harmless: only `abort` stops at once
            if client.command == "abort" or self.stop_asked_at is None:
                self.ask_to_stop(now, at_once=client.command == "abort")
            self.stop_clients.append(client)
        return False

    def obey(self, key: str, now: float) -> None:
        """Do what a key of the terminal asks for."""
        if key == "ctrl-x":
            self.signals.checkpoint += 1
        elif key == "stop":
            self.ask_to_stop(now)
        elif key == "leave":
            self.leave()
        elif key in KEYS:
            self.steer(KEYS[key])

    def leave(self) -> None:
        """Give the shell its prompt back and go on without the terminal."""
        run = self.attempts.run
        if not FOREGROUND.is_there:
            self.screen.say("nobody waits for this run, so it cannot leave; close the terminal, and it goes on")
            return
        commands = [f"python -m orchestrator {name} --run {run.name}" for name in ("top", "stop")]
        self.screen.leave(
            among(
                run.folder,
                f"run '{run.name}' goes on without this terminal (pid {os.getpid()})\n"
                f"  {commands[0]}    shows it\n  {commands[1]}   stops it",
            )
        )
        FOREGROUND.leave()

    def steer(self, wish: str, client: Client | None = None) -> None:
        """Pause, resume, validate, change the number of cycles: the store first, then whoever is concerned."""
        steering, history, utc = self.steering, self.history, self.clock.utc()
        if self.stop_asked_at is not None and wish in ("pause", "pause or resume", "validate"):
            steering.refuse("the run is stopping", client)
            return
        match wish:
            case "pause":
                steering.pause(history, utc, client)
            case "resume":
                steering.resume(history, client)
            case "pause or resume":
                steering.toggle_pause(history, utc)
            case "validate":
                steering.validate(history, utc, client)
            case _:  # cycles
                change = client.change if client is not None else wish
                if (changed := steering.cycles(change, history, client)) is not None:
                    self.profile = self.attempts.profile = self.screen.profile = changed
        self.history = self.reader.history()
        self.screen.dirty = True
        if wish in ("pause", "pause or resume"):
            self.waiting_until, self.waiting_for = None, ""  # after the pause, what it waited for is long past

    @property
    def next_save(self) -> str:
        """When a worker that saves at steps of its own does so next, in words."""
        active = self.pool.active
        step, end_step = (active.worker.step, active.end_step) if active is not None else (0, 1)
        step_s = self.attempts.step_times.median_s
        return f"the next checkpoint is {due(self.profile.run, max(step, self.history.step), end_step, step_s)}"

    @property
    def stops_where(self) -> str:
        """Where a stop leaves the worker, in words."""
        if self.saves_when_asked or self.pool.train_worker is None:
            return "after this step"
        longest = duration(self.profile.open_instruct.stop_within_s)
        return f"after its next checkpoint, within {longest}: {self.next_save}"

    def ask_to_stop(self, now: float, *, at_once: bool = False) -> None:
        """Stop after the step; at once if asked again within SECOND_PRESS_S. A burst counts as one request."""
        first, active = self.stop_asked_at, self.pool.active
        if first is not None and now - first < SAME_PRESS_S and not at_once:
            return
        self.stop_asked_at = now
        self.pool.dismiss_prepared()
        MANAGER.stopping(f"stopping {self.stops_where}")
        if at_once or (first is not None and now - first <= SECOND_PRESS_S):
            self.stop_at_once = True
            self.screen.say("stopping at once; nothing that was committed is lost")
            if active is not None:
                active.worker.abort("asked twice", now, self.profile.timeouts.kill_s)
        elif active is not None:
            self.screen.say(f"stopping {self.stops_where}; again within 10 s to stop at once")
            self.attempts.ask_to_stop(active, now)

    # --- workers ---------------------------------------------------------------------------------------------

    def hear_workers(self, now: float) -> None:
        for worker in self.pool.workers():
            messages = worker.receive(now)
            worker.flush()
            active = self.pool.active
            if active is None or worker is not active.worker or not messages:
                continue
            if self.attempts.hear(active, messages, self.clock.utc()):
                self.history = self.reader.history()
            if isinstance(active.action, Train) and any(message.type == "freed" for message in messages):
                self.hand_over(active.action, now)

    def hand_over(self, action: Train, now: float) -> None:
        """A cycle's worker has reported its result and holds no memory of a device: the one that has loaded begins the
        next cycle, while the process of the first ends. Whatever its exit code says, its last checkpoint is the head.
        """
        is_done = self.history.step == action.end_step - 1
        if self.pool.loading is not None and is_done and self.history.paused_at is None:
            self.begin_ahead(action.cycle, now)

    def begin_ahead(self, cycle: int, now: float) -> None:
        """Let the cycle that is expected after `cycle` begin before that is validated."""
        self.prepared_beside = cycle
        if (following := expected_after(self.history, self.profile)) is not None:
            self.attempts.prepare(following, self.history, now)

    def reap(self, now: float) -> None:
        pool, active = self.pool, self.pool.active
        for standby in pool.reap_standbys(now + self.profile.retry.backoff_s):
            self.screen.say(f"the warm worker ended (exit {standby.exit_code}); another follows")
        if pool.prepared is not None and pool.prepared.worker.reap():
            what = f"the worker that was started ahead ended (exit {pool.prepared.worker.exit_code})"
            pool.dismiss_prepared()
            self.screen.say(f"{what}; its cycle begins after the validation")
        if active is not None and not active.worker.reap():
            self.attempts.note_failed_nodes(active, self.clock.utc())
        elif active is not None:
            ended = self.attempts.close(active, now, self.clock.utc())
            if active.worker.life.cause == Cause.CANCELLED:
                self.cancelled = f"cycle {active.attempt.cycle}, {active.attempt.role} attempt {active.attempt.attempt}"
            self.history = self.reader.history()
            self.screen.reload(self.reader)
            has_failed = bool(ended.failure) or ended.state == AttemptState.LOST
            self.checkpoint_request.worker_ended(active.worker.token, self.history.head, has_failed=has_failed)
            failed = next((one for one in self.history.failures if one.token == active.worker.token), None)
            if self.stop_asked_at is not None and failed is not None and failed.step_reached > self.history.step:
                self.unsaved = failed
            is_asked = isinstance(active.action, Validate) and active.action.is_asked
            if is_asked and ended.failure not in ("", KILLED) and ended.state == AttemptState.FAILED:
                self.store.forgive([failed] if failed is not None else [])
                self.steering.validation_failed(ended.failure)
                self.history = self.reader.history()
        reap_strangers(worker.handle.pid for worker in pool.workers())

    def watch(self, now: float) -> None:
        """Check the deadlines of all workers. A worker stopped by a signal is waited for, not killed."""
        timeouts = self.profile.timeouts
        head_bytes = self.history.head.bytes if self.history.head else 0
        for worker in self.pool.workers():
            worker.continue_kill(now)
            if worker.kill is not None:
                continue
            if worker.life.waits:
                worker.watch = worker.watch.later_by(now - worker.watch.spawned_at)
                continue
            asked_at = self.checkpoint_request.sent_at(worker.token) if self.saves_when_asked else None
            wait_s = 0.0 if self.saves_when_asked else self.profile.open_instruct.stop_within_s
            late = overdue(worker.watch, timeouts, self.attempts.step_times, head_bytes, now, asked_at, wait_s)
            if worker.is_deaf:
                late = "message queue"
            if late and not self.is_held(worker, now):
                self.give_up(worker, late, now)

    def give_up(self, worker: Worker, late: str, now: float) -> None:
        active = self.pool.active
        if active is not None and worker is active.worker:
            active.hung = late
            self.attempts.set_state(active, AttemptState.HUNG)
        self.screen.say(f"worker {worker.handle.id} is hung ({late}): its stacks go to worker.log, then it is killed")
        worker.start_kill(late, now, dump=True)

    def is_held(self, worker: Worker, now: float) -> bool:
        """True while a signal has stopped the worker. After ten minutes it gets CONT, and then counts as hung."""
        if not worker.life.is_stopped:
            if worker.held_since is None:
                return False
            # It runs again. It could not send anything while stopped, so postpone its deadlines.
            self.postpone(worker, now - worker.watch.heard_at)
            worker.held_since = None
            return True
        if worker.held_since is None:
            worker.held_since = now
            self.screen.say(f"worker {worker.handle.id} was stopped by a signal; its deadlines pause")
        if now - worker.held_since < STOPPED_BY_SIGNAL_S:
            return True
        worker.go_on()
        return False

    # --- decisions -------------------------------------------------------------------------------------------

    def decide(self, now: float) -> Stop | None:
        """Keep the active worker, or decide what comes next and do it."""
        active = self.pool.active
        if active is not None:
            is_due = self.stop_asked_at is None and self.history.paused_at is None and standby_is_due(active)
            if is_due and (followers := followers_of(active.action, self.history, self.profile)):
                self.follow(active, followers, now)
            return None
        if self.stop_asked_at is not None:
            if self.stop_at_once:
                return Stop("stopped at once, as asked", RunState.STOPPED, ExitCode.ABORTED)
            return ending_as_asked(self.unsaved, self.history.step)
        if self.cancelled:
            what = f"somebody cancelled the job of {self.cancelled}"
            return Stop(what, RunState.FAILED, ExitCode.CLUSTER, "python -m orchestrator run   (goes on from the head)")
        if self.waiting_until is not None and now < self.waiting_until:
            self.pool.warm_up(now)
            return None
        ending: Stop | None = None
        while self.pool.active is None and ending is None:  # after a commit, go straight on to the next action
            action = next_action(self.history, self.profile, self.clock.utc(), self.waited)
            is_held = isinstance(action, Stop) and self.verifier.is_head_in_doubt(self.history)
            ending = None if is_held else self.perform(action, now)
            if is_held or isinstance(action, Wait | Paused):
                break
        return ending

    def follow(self, active: Active, followers: int, now: float) -> None:
        """Start the workers that come next. With validation.overlap one validates a cycle, and another begins the next
        one meanwhile. followers: how many are of use; without memory to spare, one."""
        pool, token = self.pool, active.worker.token
        is_ready = bool(pool.standbys) and pool.standbys[0].watch.ready
        if not self.profile.validation.overlap or (isinstance(active.action, Validate) and active.action.is_asked):
            is_short = len(pool.standbys) < followers
            pool.warm_up(now, wanted=followers if is_short and may_wait_besides() else 1)
        elif isinstance(active.action, Train):
            self.load_ahead(active.action, token, now)
        elif self.prepared_beside != active.action.cycle and (pool.loading or is_ready):
            self.begin_ahead(active.action.cycle, now)
        elif pool.prepared is None:
            pool.warm_up(now)

    def load_ahead(self, action: Train, token: str, now: float) -> None:
        """While a cycle trains: one worker waits to validate it, and another loads the model for the next cycle.

        It takes the memory that the validation will take, and is given up if the training fails."""
        pool = self.pool
        pool.warm_up(now, wanted=1 if pool.prepared is not None else 2)
        if self.loaded_beside == token or len(pool.standbys) < 2 or not all(one.watch.ready for one in pool.standbys):
            return
        following = expected_after_training(action, self.history, self.profile)
        if following is not None and may_wait_besides():
            self.loaded_beside = token
            self.attempts.load(following, self.history, now)

    def perform(self, action: Action, now: float) -> Stop | None:
        self.waiting_until = None
        match action:
            case Train() | Validate():
                self.waiting_for = ""
                self.attempts.record_problems(action, self.history)
                self.attempts.start(action, self.history, now, self.clock.utc())
                self.history = self.reader.history()
                if (worker := self.pool.train_worker) is not None:
                    self.checkpoint_request.worker_started(worker, now)
            case Commit(cycle):
                self.commit_cycle(cycle, now)
            case Paused():
                self.pool.dismiss_prepared()
                self.pool.dismiss_standbys()
                self.steering.tell_paused(self.history, self.clock.utc())
            case Wait(seconds, reason, failure):
                self.waiting_until, self.waited = now + seconds, failure
                self.waiting_for = reason
            case Stop():
                self.block_cycle(action)
                return action
        return None

    def commit_cycle(self, cycle: int, now: float) -> None:
        """Check the cycle for stagnation, commit it, and back up the store."""
        judgement = verdict(self.history, self.profile.stagnation)
        self.store.commit_cycle(cycle, str(judgement), judgement.evidence, self.clock.utc())
        crash_point("cycle.committed")
        if now >= self.next_backup_at:
            self.store.backup(f"cycle-{cycle:06d}.db")
            took = self.clock.monotonic() - now
            self.next_backup_at = now + took / BACKUP_SHARE
            # Not part of `took`: the longer the pause, the more there would be to remove after the next.
            remove_old_cycles(self.attempts.run, self.profile.retention.keep_cycles)
        self.history = self.reader.history()
        self.screen.reload(self.reader)
        if judgement.kind != "go":
            self.screen.say(f"{judgement.kind}: {judgement.evidence} -> {judgement.action}")

    def block_cycle(self, ending: Stop) -> None:
        """Mark the current cycle as blocked if the run failed; a later `run` retries it."""
        if ending.state == RunState.FAILED and self.history.current is not None:
            with suppress(WrongTransition):
                self.store.set_cycle_state(self.history.current.cycle, CycleState.BLOCKED)

    # --- the end ---------------------------------------------------------------------------------------------

    def dismiss(self, *, keep_jobs: bool) -> None:
        """End all our processes, whatever the reason to exit, and answer all waiting clients.

        keep_jobs: leave a scheduler's job running, for the next master to take over.
        """
        self.verifier.close()
        self.pool.dismiss_prepared()
        self.pool.dismiss_standbys()
        active = self.pool.active
        if active is not None:
            if keep_jobs and isinstance(active.worker.launcher, BatchLauncher):
                active.worker.close()
            else:
                active.worker.end()
                self.pool.discard(active.worker)
        is_saved = self.unsaved is None or self.stop_at_once
        error = "" if is_saved else ending_as_asked(self.unsaved, self.history.step).reason
        for client in self.stop_clients:
            client.answer(ok=is_saved, step=self.history.step, until_exit=True, **({"error": error} if error else {}))
        self.checkpoint_request.run_ended(self.history.head)
        self.steering.run_ended()
        self.server.close()
