"""Brings a lost or outdated store up to the newest intact checkpoint, from the run's files.

Replays the run attempt by attempt, mostly through the store methods that first recorded it. Safe to rerun after a kill:
whatever already has a row is not replayed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.commit import Ledger, answers_in
from orchestrator.ingest import drop_torn_line, ingest_all
from orchestrator.records import Link, Record, line_to, links, new_attempt, read_records
from orchestrator.stagnation import verdict
from orchestrator.supervise import failure_class
from profiles.schema import Profile
from state import recover
from state.crash import crash_point
from state.history import History
from state.recover import Kind, Repair
from state.states import FINAL, AttemptState, CycleState
from workers.contract import Outcome


def catch_up(ledger: Ledger, now: float) -> list[str]:
    """Adopt every attempt up to the newest intact checkpoint of the run, if ordinary recovery cannot adopt it.

    Returns a line for each thing done; none if the store is up to date, as at nearly every start.
    """
    history = ledger.reader.history()
    strangers = recover.strangers(ledger.run, history.run_id, ledger.reader.checkpoints())
    newer = [item for item in strangers if item.step > history.step or history.head is None]
    if all(_is_ordinary(ledger, item, strangers, history) for item in newer):
        return []
    records = read_records(ledger.run, history.run_id)
    known, tokens = links(ledger.run, records), {record.spec.token for record in records}
    for item in sorted(newer, key=lambda item: (item.step, item.name), reverse=True):
        line = line_to(item.checkpoint_id, known)
        if continues(ledger, line, history, tokens) and not recover.look(item.path).problem:
            return Telling(ledger, records, unknown_part(ledger, line), history, now).all()
    return []


def pass_over(ledger: Ledger, path: Path, problem: str, now: float) -> None:
    """Put away a checkpoint that a living worker has just reported and that does not verify.

    The worker has the state, and its next checkpoint names this one as its parent: so this one gets a row. What it was
    is told by the worker's events.
    """
    run, reader = ledger.run, ledger.reader
    told = links(run, read_records(run, reader.history().run_id)).values()
    recover.apply(run, Repair(Kind.QUARANTINE, path, problem))
    for link in told:
        facts = link.facts
        if facts.path == run.relative(path) and reader.checkpoint(facts.checkpoint_id) is None:
            ledger.store.add_lost_checkpoint(facts, link.attempt, now)


def _is_ordinary(ledger: Ledger, item: recover.FoundDir, strangers: list[recover.FoundDir], history: History) -> bool:
    """Whether the store knows its attempt, and all checkpoints between it and the head exist."""
    there = {one.checkpoint_id: one for one in strangers}
    parent = item.parent
    while parent in there:
        parent = there[parent].parent
    is_child = parent == (history.head.checkpoint_id if history.head is not None else None)
    return is_child and ledger.reader.knows(item.token)


def continues(ledger: Ledger, line: list[Link], history: History, tokens: Collection[str]) -> bool:
    """Whether the line belongs to this run's history: it passes through the head, or files between the two are missing.

    A line that branches off before the head belongs to another history. So may a line without a known ancestor whose
    last attempt left no files here. Neither is adopted. tokens: those of attempts with files here.
    """
    if history.head is None:
        return True
    ids = [*([line[0].facts.parent] if line[0].facts.parent else []), *(link.facts.checkpoint_id for link in line)]
    met = [identity for identity in ids if ledger.reader.checkpoint(identity) is not None]
    if met:
        return met[-1] == history.head.checkpoint_id
    return line[0].facts.parent is not None and line[-1].token in tokens


def unknown_part(ledger: Ledger, line: list[Link]) -> list[Link]:
    """Links without a row in the store, oldest first."""
    return [link for link in line if ledger.reader.checkpoint(link.facts.checkpoint_id) is None]


@dataclass
class Telling:
    """One replay of the run's history, up to the last link of `line`."""

    ledger: Ledger
    records: list[Record]
    line: list[Link]
    before: History
    now: float

    def all(self) -> list[str]:
        last = self.line[-1].facts
        lines = self._unreported()
        self._make_missing_cycles()
        opened = [record for record in self.records if record.has_begun and self._is_open(record)]
        for record in opened:
            self._close_cycles_before(record.spec.cycle)
            self._tell(record)
            crash_point("recover.told")
        for link in self.line:  # checkpoints of attempts that left no files
            self._commit(link)
        self._close_cycles_before(last.cycle)
        self._close_cycle(last.cycle)
        self._forget_pruned()
        first = min((record.spec.cycle for record in opened), default=last.cycle)
        lines.append(
            f"the store knew nothing after {_where(self.before)}; cycles {first} to {last.cycle} were adopted from "
            f"their files, up to {last.path} (step {last.step})"
        )
        return lines

    def _unreported(self) -> list[str]:
        """Report what cannot be replayed: cycles without files, and attempts whose number has another row."""
        first = self.before.head.cycle + 1 if self.before.head is not None else 0
        there = {record.spec.cycle for record in self.records}
        gone = [cycle for cycle in range(first, self.line[-1].facts.cycle + 1) if cycle not in there]
        lines = []
        if gone:
            names = ", ".join(map(str, gone))
            lines.append(f"no files are left of cycles {names}: skipped; what they trained is in the checkpoint")
        for record in self.records:
            spec, token = record.spec, self._token(record)
            if token and token != spec.token:
                lines.append(f"cycle {spec.cycle}: {spec.role} attempt {spec.attempt} is of another history: left out")
        return lines

    def _token(self, record: Record) -> str:
        return self.ledger.reader.token_of(record.spec.cycle, record.spec.role, record.spec.attempt)

    def _is_open(self, record: Record) -> bool:
        """Whether it has no row yet, or an open one."""
        token = self._token(record)
        if token == record.spec.token:
            return self.ledger.store.attempt_state(token) not in FINAL
        return not token

    def _make_missing_cycles(self) -> None:
        """Add rows for cycles that have checkpoints but no spec; they span the steps of their checkpoints."""
        there = {record.spec.cycle for record in self.records if record.spec.role == "train"}
        steps: dict[int, list[int]] = {}
        for link in self.line:
            if link.facts.cycle not in there:
                steps.setdefault(link.facts.cycle, []).append(link.facts.step)
        for cycle, reached in steps.items():
            self.ledger.store.plan_cycle(cycle, _phase(cycle), max(1, min(reached)), max(reached) + 1, 0, self.now)

    def _tell(self, record: Record) -> None:
        """Replay one attempt: plan it, ingest its events, commit its checkpoints, close it."""
        spec, store = record.spec, self.ledger.store
        if spec.role == "train":
            store.plan_cycle(spec.cycle, _phase(spec.cycle), spec.first_step, spec.end_step, spec.reseed, self.now)
        elif self.ledger.reader.end_step(spec.cycle) < 0:
            return
        if not self._token(record):
            store.restore_attempt(new_attempt(spec, self.now))
        drop_torn_line(record.directory.events)
        ingest_all(store, spec.token, record.directory.events)
        mine = [link for link in self.line if link.token == spec.token]
        for link in mine:
            self._commit(link)
        state, failure = self._ending(record, bool(mine))
        result = record.result
        store.close_attempt(
            spec.token,
            state,
            exit_code=result.exit_code if result is not None else None,
            failure=failure,
            message=result.error if result is not None and failure else "",
            step_reached=result.last_step if result is not None else 0,
            cycle_state=None,
            exhausted=bool(mine) and result is not None and result.outcome == Outcome.EXHAUSTED,
            now=self.now,
        )

    def _ending(self, record: Record, is_of_line: bool) -> tuple[AttemptState, str]:
        result = record.result
        if result is None:
            return AttemptState.LOST, ""
        if result.outcome == Outcome.FAILED:
            return AttemptState.FAILED, failure_class(result.exit_code, hung="", oom_killed=False)
        if result.outcome == Outcome.STOPPED:
            return AttemptState.STOPPED, ""
        if record.spec.role == "validate":
            is_of_line = self._take_scores(record)
        return (AttemptState.SUCCEEDED if is_of_line else AttemptState.LOST), ""

    def _take_scores(self, record: Record) -> bool:
        """Store the attempt's scores if they are of the current head, and return whether they are."""
        head, result, spec = self.ledger.reader.history().head, record.result, record.spec
        if head is None or spec.head is None or result is None or not result.validation:
            return False
        if spec.head.checkpoint_id != head.checkpoint_id:
            return False
        if not spec.asked:
            self.ledger.store.restore_cycle(spec.cycle, CycleState.VALIDATING)
        self.ledger.store.commit_validation(
            head.checkpoint_id,
            spec.cycle,
            spec.attempt,
            head.step,
            result.validation,
            self.now,
            answers_in(result),
            is_asked=spec.asked,
        )
        if spec.all_problems:  # later validations must answer the same problems
            self.ledger.store.decide_problems(all_problems=True)
        return True

    def _commit(self, link: Link) -> None:
        """Add a checkpoint's row and make it the head. A pruned or damaged checkpoint is marked as deleted."""
        reader, store, facts = self.ledger.reader, self.ledger.store, link.facts
        if reader.checkpoint(facts.checkpoint_id) is not None:
            return
        is_whole = not recover.look(self.ledger.run.root / facts.path).problem
        parent = facts.parent if facts.parent and reader.checkpoint(facts.parent) is not None else None
        end_step = reader.end_step(facts.cycle)
        facts = replace(facts, parent=parent, verified=is_whole, is_cycle_end=facts.step == end_step - 1)
        store.commit_checkpoint(facts, link.attempt, self.now)
        if not is_whole:
            store.set_checkpoint_state(facts.checkpoint_id, "deleted")

    def _close_cycles_before(self, cycle: int) -> None:
        """Commit earlier cycles that were trained to their end, because a cycle closes before the next one starts."""
        while (current := self.ledger.reader.history().current) is not None and current.cycle < cycle:
            state = self._close_cycle(current.cycle)
            if state not in (CycleState.TRAINED, CycleState.VALIDATED):
                return
            judgement = verdict(self.ledger.reader.history(), self._profile_of(current.cycle).stagnation)
            self.ledger.store.commit_cycle(current.cycle, str(judgement), judgement.evidence, self.now)

    def _close_cycle(self, cycle: int) -> CycleState:
        """Set the cycle's state from what is committed, and return it."""
        history = self.ledger.reader.history()
        current, head = history.current, history.head
        if current is None or current.cycle != cycle or current.state == CycleState.COMMITTED:
            return self.ledger.store.cycle_state(cycle)
        state = CycleState.TRAINING
        if head is not None and (head.step >= current.end_step - 1 or current.exhausted):
            is_scored = any(validation.step == head.step for validation in current.validations)
            state = CycleState.VALIDATED if is_scored else CycleState.TRAINED
        self.ledger.store.restore_cycle(cycle, state)
        return state

    def _profile_of(self, cycle: int) -> Profile:
        of_cycle = [record for record in self.records if record.spec.cycle == cycle]
        return (of_cycle or self.records)[-1].spec.profile

    def _forget_pruned(self) -> None:
        """Mark checkpoints as deleted that were pruned after this store was backed up."""
        for facts in self.ledger.reader.checkpoints():
            if facts.state == "committed" and not (self.ledger.run.root / facts.path).exists():
                self.ledger.store.set_checkpoint_state(facts.checkpoint_id, "deleted")


def _phase(cycle: int) -> str:
    return "train" if cycle else "seed"


def _where(history: History) -> str:
    return f"step {history.head.step}" if history.head is not None else "the beginning"
