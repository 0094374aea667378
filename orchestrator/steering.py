"""Carries out what people ask of a run besides stops and checkpoints: pause and resume, validate, other cycles.

Each request is in the store before it is answered or obeyed, so it survives a kill of anybody. `schedule.next_action`
decides what follows from it; this module only asks the worker to give way, and answers who waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.attempts import Attempts
from orchestrator.control import Client
from orchestrator.display.wording import count, duration
from orchestrator.schedule import Train
from orchestrator.worker_pool import Active, WorkerPool
from profiles.load import profile_sha256, resolved_json
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state.history import History, ValidationFacts
from state.store import Store
from workers.contract import PAUSED, Message

ON_REQUEST = "on request; `resume` goes on, or p"
"""Why a run is paused."""
MOST_CYCLES = 10**9


class Refused(Exception):
    """The request makes no sense now; the text says why."""


# --- decisions (pure) ------------------------------------------------------------------------------------------------


def keeps_worker(profile: Profile) -> bool:
    """Whether a pause leaves the worker alive for a while. Other programs, and ranks of a group, do not wait."""
    return not worker_kind_of(profile).has_own_engine and profile.run.ranks == 1


def step_to_validate(history: History, worker_step: int | None) -> int:
    """After which step a validation that is asked for now takes place.

    worker_step: the step in progress of the train worker; None: nothing trains. Raises Refused if the newest
    checkpoint is scored already, and nothing newer is being made.
    """
    head = history.head
    if head is None:
        return 0
    if worker_step is not None and worker_step > head.step:
        return worker_step
    if not history.is_head_validated:
        return head.step
    if worker_step is None:
        raise Refused(f"the newest checkpoint, of step {count(head.step)}, is validated already")
    return head.step + 1


def gives_way(history: History, worker_step: int) -> bool:
    """Whether a train worker in this step is to stop after it, for a validation that somebody asked for."""
    asked = history.validation_asked
    return asked is not None and history.head is not None and worker_step >= asked


def changed_cycles(change: str, now: int, cycle: int) -> int:
    """`run.max_cycles` after a change such as `+2`, `-1`, `40` or `none`. now: the current one; 0: no limit.

    cycle: the one under way, which is finished whatever is asked. Raises Refused.
    """
    word = change.strip().lower()
    if word in ("none", "no limit", "0"):
        return 0
    is_relative = word[:1] in ("+", "-")
    if not (word[1:] if is_relative else word).isascii() or not (word[1:] if is_relative else word).isdigit():
        raise Refused(f"'{change[:40]}' is no number of cycles: +2, -1, 40 or none")
    if len(word) > 10:
        raise Refused(f"at most {MOST_CYCLES:,} cycles")
    if is_relative and not now:
        raise Refused("this run has no limit of cycles; `cycles 40` sets one")
    wanted = now + int(word) if is_relative else int(word)
    if wanted > MOST_CYCLES:
        raise Refused(f"at most {MOST_CYCLES:,} cycles")
    return max(wanted, cycle, 1)


def with_cycles(profile: Profile, max_cycles: int) -> Profile:
    return msgspec.structs.replace(profile, run=msgspec.structs.replace(profile.run, max_cycles=max_cycles))


def cycle_facts(profile: Profile, history: History) -> dict[str, Any]:
    """The answer to `cycles`."""
    cycle, most = history.current.cycle if history.current else 0, profile.run.max_cycles
    return {"max_cycles": most, "cycle": cycle, "left": max(0, most - cycle) if most else None}


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass
class Waiting:
    """Clients whose request is not answered yet."""

    pause: list[Client]
    validate: list[Client]


class Steering:
    """Requests of people, from the keys and from other terminals."""

    def __init__(self, store: Store, attempts: Attempts, pool: WorkerPool, profile: Profile) -> None:
        self.store = store
        self.attempts = attempts
        self.pool = pool
        self.profile = profile
        self.say = attempts.screen.say
        self._waiting = Waiting([], [])
        self._told = ""
        """Where the run is paused, as it was said last."""

    # client: whom to answer; None: a key was pressed.

    def pause(self, history: History, utc: float, client: Client | None = None) -> None:
        if history.paused_at is None:
            self._told = ""
            self.store.pause(ON_REQUEST, utc)
            trains = self.pool.train_worker is not None
            self.say("pausing after this step" if trains else "paused: no worker starts until `resume`, or the key p")
        if client is not None:
            self._waiting.pause.append(client)

    def resume(self, history: History, client: Client | None = None) -> None:
        is_paused = history.paused_at is not None
        if is_paused:
            self.store.resume()
            self.say(f"resumed after step {count(history.step)}")
        for waiting in _taken(self._waiting.pause):
            waiting.answer(ok=False, error="somebody resumed the run first")
        if client is not None:
            note = "resumed" if is_paused else "the run was not paused"
            client.answer(ok=True, step=history.step, note=note)

    def toggle_pause(self, history: History, utc: float) -> None:
        if history.paused_at is None:
            self.pause(history, utc)
        else:
            self.resume(history)

    def validate(self, history: History, utc: float, client: Client | None = None) -> None:
        if history.validation_asked is None:
            try:
                if not worker_kind_of(self.profile).validates:
                    raise Refused("nothing of ours validates this run: another program has its weights")
                step = self._step_to_validate(history)
            except Refused as why:
                self.refuse(str(why), client)
                return
            self.store.ask_for_validation(step, utc)
            self.say("a validation follows this step" if self.pool.train_worker else "a validation follows")
        if client is not None:
            self._waiting.validate.append(client)

    def _step_to_validate(self, history: History) -> int:
        active = self.pool.active
        if active is not None and not isinstance(active.action, Train) and history.head is not None:
            return history.head.step  # it is being scored
        is_idle = active is None or (active.worker.watch.stage == PAUSED and active.worker.step <= history.step)
        return step_to_validate(history, None if is_idle or active is None else active.worker.step)

    def cycles(self, change: str, history: History, client: Client | None = None) -> Profile | None:
        """The changed profile, which is in the store; None if it stays as it is."""
        current = history.current.cycle if history.current else 0
        try:
            wanted = changed_cycles(change, self.profile.run.max_cycles, current) if change else None
        except Refused as why:
            self.refuse(str(why), client)
            return None
        changed = None
        if wanted is not None and wanted != self.profile.run.max_cycles:
            changed = with_cycles(self.profile, wanted)
            self.store.set_profile(resolved_json(changed).decode(), profile_sha256(changed))
            self.profile = changed
        facts = cycle_facts(self.profile, history)
        if change:
            self.say(cycles_text(facts))
        if client is not None:
            client.answer(ok=True, **facts)
        return changed

    def refuse(self, why: str, client: Client | None) -> None:
        self.say(why)
        if client is not None:
            client.answer(ok=False, error=why)

    def note(self, history: History) -> str:
        """What was asked for and is not there yet, for the display; empty: nothing."""
        if history.paused_at is not None:
            return "paused: p goes on" if self._where_paused(history) else "pausing after this step"
        return "a validation was asked for" if history.validation_asked is not None else ""

    # --- every turn ----------------------------------------------------------------------------------------------

    def turn(self, history: History, now: float, utc: float) -> None:
        """Ask the train worker to wait, to go on or to give way, and answer whoever got what was asked for."""
        active = self.pool.active
        if active is not None and isinstance(active.action, Train) and not active.stop_sent:
            self._direct(active, history, now)
        if active is not None:  # without a worker the run may be about to end: `Paused` says that it is not
            self.tell_paused(history, utc)
        if history.validation_asked is None:
            for client in _taken(self._waiting.validate):
                self._answer_validation(client, history)

    def tell_paused(self, history: History, utc: float) -> None:
        """Say that the pause has taken hold, and answer whoever asked for it, if it has."""
        if history.paused_at is None or not (where := self._where_paused(history)):
            return
        if where != self._told:
            self._told = where
            self.say(f"paused {where}")
        for client in _taken(self._waiting.pause):
            client.answer(ok=True, step=history.step, paused_s=max(0.0, utc - history.paused_at), note=where)

    def _direct(self, active: Active, history: History, now: float) -> None:
        is_paused = history.paused_at is not None
        if gives_way(history, active.worker.step) or (is_paused and not keeps_worker(self.profile)):
            self.attempts.ask_to_stop(active, now)
        elif is_paused != active.worker.watch.is_to_pause:
            active.worker.watch = active.worker.watch.asked_to_pause(is_paused, now)
            active.worker.send(Message(type="pause" if is_paused else "resume"))

    def _where_paused(self, history: History) -> str:
        """Where the pause has taken hold, in words; empty: it has not yet."""
        active = self.pool.active
        if active is None:
            return f"after step {count(history.step)}; the GPU is free"
        if active.worker.watch.stage != PAUSED or not isinstance(active.action, Train):
            return ""
        keeps = duration(self.profile.timeouts.paused_s)
        return f"after step {count(active.worker.step)}; the worker keeps the GPU for {keeps} (timeouts.paused_s)"

    def _answer_validation(self, client: Client, history: History) -> None:
        found = history.last_validation
        if found is None or not history.is_head_validated:
            client.answer(ok=False, error="the validation failed; `logs` says why")
        else:
            client.answer(ok=True, validation=_scores(found))

    def validation_failed(self, what: str) -> None:
        """A validation that somebody asked for failed by itself: withdraw the request, so that training goes on."""
        self.store.withdraw_validation()
        self.say(f"the validation that was asked for failed ({what}); the run goes on without it")

    def run_ended(self) -> None:
        """No worker follows: answer everybody."""
        for client in _taken(self._waiting.pause):
            client.answer(ok=False, error="the run ended first")
        for client in _taken(self._waiting.validate):
            client.answer(ok=False, error="the run ended first; the validation follows when it goes on")


def cycles_text(facts: dict[str, Any]) -> str:
    if not facts["max_cycles"]:
        return f"cycle {facts['cycle']}, without a limit of cycles"
    left = facts["left"]
    more = f"{count(left)} more" if left else "none more"
    return f"cycle {facts['cycle']} of {count(facts['max_cycles'])}: {more} after it"


def _scores(found: ValidationFacts) -> dict[str, Any]:
    metrics = {task: dict(values) for task, values in found.metrics.items()}
    return {"step": found.step, "suite": found.suite, "metrics": metrics}


def _taken(clients: list[Client]) -> Sequence[Client]:
    taken = list(clients)
    clients.clear()
    return taken
