"""The master: one turn of the wheel at a time, and the only wait.

turn() hears people and workers, reaps, watches deadlines, decides and performs. What comes next is decided by pure
functions (schedule, stagnation, deadlines); what happened is written by Attempts and the Ledger.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from orchestrator.attempts import Attempts
from orchestrator.checkpoint_request import CheckpointRequest
from orchestrator.clock import Clock
from orchestrator.commit import Ledger
from orchestrator.control import Client, Server
from orchestrator.deadlines import overdue
from orchestrator.display.screen import Screen
from orchestrator.live_facts import LiveFacts
from orchestrator.ready import wait_for_any
from orchestrator.run_directory import make_ballast
from orchestrator.schedule import Action, Commit, Stop, Train, Validate, Wait, may_be_followed, next_action
from orchestrator.signals import Signals
from orchestrator.stagnation import verdict
from orchestrator.supervise import Worker
from orchestrator.verifying import Verifier
from orchestrator.worker_pool import WorkerPool, reap_strangers, rotate_log, standby_is_due
from profiles.errors import ExitCode
from profiles.schema import Profile
from state.crash import crash_point
from state.history import History
from state.layout import RunDir
from state.reader import Reader
from state.states import AttemptState, CycleState, RunState, WrongTransition
from state.store import Store

SAME_PRESS_S = 0.3
"""Stop requests closer together than this are one: a burst of signals, or a key that bounced."""
SECOND_PRESS_S = 10.0
STOPPED_BY_SIGNAL_S = 600.0
HEARTBEAT_ROW_S = 30.0
BACKUP_EVERY_CYCLES = 10
WAIT_S = 0.5
WAIT_WHILE_KILLING_S = 0.05
AWAY_S = 3.0
"""A longer gap between two turns means that we did not run: stopped by a signal, or starved."""


class Master:
    """Runs one run until there is a reason to stop."""

    def __init__(
        self,
        run: RunDir,
        store: Store,
        reader: Reader,
        profile: Profile,
        clock: Clock,
        signals: Signals,
        screen: Screen,
    ) -> None:
        self.store = store
        self.reader = reader
        self.profile = profile
        self.clock = clock
        self.signals = signals
        self.screen = screen
        self.history: History = reader.history()
        self.pool = WorkerPool(run, self.history.run_id, profile.run)
        ledger = Ledger(run, store, reader, profile.retention)
        self.checkpoint_request = CheckpointRequest(screen.say)
        self.attempts = Attempts(run, store, profile, self.pool, ledger, self.checkpoint_request, screen)
        self.verifier = Verifier(self.attempts, signals)
        self.live = LiveFacts()
        self.server = Server(run)
        # A person who starts a failed run again has looked at it: old failures no longer count.
        was_failed = self.history.state == RunState.FAILED
        self.forgiven = frozenset(failure.token for failure in self.history.failures if was_failed)
        self.stop_asked_at: float | None = None
        self.stop_at_once = False
        self.stop_clients: list[Client] = []
        self.waiting_until: float | None = None  # monotonic: the wall clock may be set back while we wait
        self.waiting_for = ""
        """Why; shown until the next worker starts."""
        self.waited = ""  # token of the failure that we wait for, or waited for last
        self.last_turn = clock.monotonic()
        self.last_heartbeat_row = self.last_turn

    # --- the wheel -------------------------------------------------------------------------------------------

    def run(self) -> Stop:
        """Turn until there is an ending; then write down why, and dismiss everybody."""
        try:
            while (ending := self.turn(self.clock.monotonic())) is None:
                self.wait()
            self.store.set_run_state(ending.state, ending.reason, self.clock.utc())
            return ending
        finally:
            self.dismiss()

    def wait(self) -> None:
        """The only wait: for a signal, a message, an end, a command, a key, or half a second."""
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
        ending = self.decide(now)
        note = self.note()
        self.screen.show(self.history, self.live.at(now, self.pool, waiting_until=self.waiting_until, note=note))
        self.keep_house(now)
        return ending

    def note(self) -> str:
        """What a person should know, in a few words."""
        if self.waiting_for:
            return f"waiting: {self.waiting_for}"
        if self.stop_asked_at is not None:
            return "stopping after this step"
        return "checkpoint requested" if self.checkpoint_request.is_sent else ""

    def forgive_our_own_absence(self, now: float) -> None:
        """If we were stopped or starved, the silence was ours: move every deadline by the time that we were away."""
        away, self.last_turn = now - self.last_turn, now
        if away > AWAY_S:
            for worker in self.pool.workers():
                self.postpone(worker, away)

    def postpone(self, worker: Worker, seconds: float) -> None:
        """Move every deadline of a worker by time in which it, or we, did not run."""
        worker.watch = worker.watch.later_by(seconds)
        self.checkpoint_request.later_by(worker.token, seconds)

    def keep_house(self, now: float) -> None:
        """Now and then: say in the store that we live, and keep logs short."""
        if now - self.last_heartbeat_row > HEARTBEAT_ROW_S:
            self.last_heartbeat_row = now
            self.store.heartbeat(self.clock.utc())
            make_ballast(self.attempts.run)
            for worker in self.pool.workers():
                rotate_log(worker.log)

    # --- people ----------------------------------------------------------------------------------------------

    def hear_people(self, now: float) -> None:
        self.signals.key(self.screen.read_keys())
        is_asked = False
        for client in self.server.poll(now):
            if client.command == "status":
                client.answer(ok=True, master_pid=os.getpid(), state=self.history.state)
            elif client.command == "checkpoint":
                self.checkpoint_request.join(client)
                is_asked = True
            else:  # said as often as one likes: only `abort` is at once
                self.stop_clients.append(client)
                if client.command == "abort" or self.stop_asked_at is None:
                    self.ask_to_stop(now, at_once=client.command == "abort")
        if self.signals.hangup:
            self.signals.hangup = 0
            self.screen.go_headless()
        for pressed_at in self.signals.take_stops():
            self.ask_to_stop(pressed_at)
        if is_asked or self.signals.checkpoint:
            self.signals.checkpoint = 0
            self.checkpoint_request.ask(self.pool.train_worker, self.history.head, now)

    def ask_to_stop(self, now: float, *, at_once: bool = False) -> None:
        """First: after the step. A second one within ten seconds: at once. A burst is one."""
        first, active = self.stop_asked_at, self.pool.active
        if first is not None and now - first < SAME_PRESS_S and not at_once:
            return
        self.stop_asked_at = now
        if at_once or (first is not None and now - first <= SECOND_PRESS_S):
            self.stop_at_once = True
            self.screen.say("stopping at once; nothing that was committed is lost")
            if active is not None:
                active.worker.abort("asked twice", now, self.profile.timeouts.kill_s)
        elif active is not None:
            self.screen.say("stopping after this step; again within 10 s to stop at once")
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

    def reap(self, now: float) -> None:
        pool, active = self.pool, self.pool.active
        if pool.standby is not None and pool.standby.reap():
            self.screen.say(f"the warm worker ended (exit {pool.standby.exit_code}); another follows")
            pool.discard(pool.standby)
            pool.standby = None
            pool.next_standby_at = now + self.profile.retry.backoff_s
        if active is not None and active.worker.reap():
            ended = self.attempts.close(active, now, self.clock.utc())
            self.history = self.reader.history()
            self.screen.reload(self.reader)
            has_failed = bool(ended.failure) or ended.state == AttemptState.LOST
            self.checkpoint_request.worker_ended(active.worker.token, self.history.head, has_failed=has_failed)
        reap_strangers(worker.handle.pid for worker in pool.workers())

    def watch(self, now: float) -> None:
        """Deadlines. A worker that somebody stopped with a signal is waited for, not killed."""
        timeouts = self.profile.timeouts
        head_bytes = self.history.head.bytes if self.history.head else 0
        for worker in self.pool.workers():
            worker.continue_kill(now)
            if worker.kill is not None:
                continue
            asked_at = self.checkpoint_request.sent_at(worker.token)
            late = overdue(worker.watch, timeouts, self.attempts.step_times, head_bytes, now, asked_at)
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
        """True while it is stopped by a signal; after ten minutes it is continued once, then counts as hung."""
        if not worker.life.is_stopped:
            if worker.held_since is None:
                return False
            # It runs again: it had no chance to speak, so every deadline begins anew.
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
        """Keep the active worker, or find out what comes next and do it."""
        active = self.pool.active
        if active is not None:
            is_due = self.stop_asked_at is None and standby_is_due(active)
            if is_due and may_be_followed(active.action, self.history, self.profile):
                self.pool.warm_up(now)
            return None
        if self.stop_asked_at is not None:
            if self.stop_at_once:
                return Stop("stopped at once, as asked", RunState.STOPPED, ExitCode.ABORTED)
            return Stop("asked to stop", RunState.STOPPED, ExitCode.OK)
        if self.waiting_until is not None and now < self.waiting_until:
            return None
        ending: Stop | None = None
        while self.pool.active is None and ending is None:  # closing a cycle leads straight to the next: no wait
            forgiven = self.forgiven | self.verifier.forgiven
            action = next_action(self.history, self.profile, self.clock.utc(), forgiven, self.waited)
            is_held = isinstance(action, Stop) and self.verifier.is_head_in_doubt(self.history)
            ending = None if is_held else self.perform(action, now)
            if is_held or isinstance(action, Wait):
                break
        return ending

    def perform(self, action: Action, now: float) -> Stop | None:
        self.waiting_until = None
        match action:
            case Train() | Validate():
                self.waiting_for = ""
                self.attempts.settle_problems(action, self.history)
                self.attempts.start(action, self.history, now, self.clock.utc())
                self.history = self.reader.history()
                if (worker := self.pool.train_worker) is not None:
                    self.checkpoint_request.worker_started(worker, now)
            case Commit(cycle):
                self.commit_cycle(cycle)
            case Wait(seconds, reason, failure):
                self.waiting_until, self.waited = now + seconds, failure
                self.waiting_for = reason
            case Stop():
                self.block_cycle(action)
                return action
        return None

    def commit_cycle(self, cycle: int) -> None:
        """Judge it, close it, and keep a back-up of the store now and then."""
        judgement = verdict(self.history, self.profile.stagnation)
        self.store.commit_cycle(cycle, str(judgement), judgement.evidence, self.clock.utc())
        crash_point("cycle.committed")
        if cycle and cycle % BACKUP_EVERY_CYCLES == 0:
            self.store.backup(f"cycle-{cycle:06d}.db")
        self.history = self.reader.history()
        self.screen.reload(self.reader)
        if judgement.kind != "go":
            self.screen.say(f"{judgement.kind}: {judgement.evidence} -> {judgement.action}")

    def block_cycle(self, ending: Stop) -> None:
        """A cycle that was given up says so; a later `run` tries it again."""
        if ending.state == RunState.FAILED and self.history.current is not None:
            with suppress(WrongTransition):
                self.store.set_cycle_state(self.history.current.cycle, CycleState.BLOCKED)

    # --- the end ---------------------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """End every process of ours, whatever the reason to leave, and answer everybody who waits."""
        self.verifier.close()
        self.pool.dismiss_standby()
        active = self.pool.active
        if active is not None:
            active.worker.end()
            self.pool.discard(active.worker)
        for client in self.stop_clients:
            client.answer(ok=True, step=self.history.step, until_exit=True)
        self.checkpoint_request.run_ended(self.history.head)
        self.server.close()
