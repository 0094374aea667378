"""Reads state.db without a lock and without writing: History for decisions, series and events for displays."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from typing import Any

from profiles.errors import ExitCode, LonghaulError
from state import event_kinds
from state.answers import answers_of
from state.cycle_times import NEWEST as NEWEST_CYCLES
from state.cycle_times import STEPS_READ, CycleTime, StartTime, start_of, time_of
from state.history import (
    WINDOW,
    AnswerBits,
    AttemptFacts,
    CheckpointFacts,
    CycleFacts,
    EventFacts,
    History,
    NodeFailure,
    StepFacts,
    ValidationCost,
    ValidationFacts,
)
from state.layout import RunDir
from state.opening import damaged, read_only, store_error
from state.requests import PAUSE, VALIDATE
from state.series import COLUMNS, POINTS, Thinned, extremes, read_series
from state.states import AttemptState, CycleState, RunState
from state.tables import WITH_ANSWERS, WITH_FORGIVEN, WITH_NODES, WITH_REQUESTS, WITH_TOTALS

DECODED = 1024
"""More than a master shows of steps and of validations, so that it decodes each once."""
EVENTS_SEARCHED = 100_000
Answers = dict[tuple[int, str], dict[str, AnswerBits]]
"""(cycle, suite) -> task -> bits."""
Scores = dict[int, list[ValidationFacts]]

_CHECKPOINT = "checkpoint_id, parent, cycle, step, path, digest, bytes, verified, is_cycle_end, state"
_THAT_COUNT = (
    "trained=1 OR (step > (SELECT coalesce(max(step), 0) FROM steps WHERE trained=1) AND attempt ="
    " (SELECT max(attempt) FROM attempts a WHERE a.cycle=steps.cycle AND a.role='train')"
    " AND cycle <= coalesce((SELECT min(cycle) FROM cycles WHERE state<>'committed'), cycle))"
)
"""Trained steps, and those of the open attempt beyond the head. A fall-back leaves steps of later cycles."""
_LAST = (1 << 63) - 1
_VALIDATION = "cycle, step, suite, accuracy, correct, n, metrics"
_ATTEMPT = (
    "cycle, role, attempt, token, state, first_step, step_reached, progressed, exit_code, failure, message,"
    " reductions, started_at, coalesce(ended_at, 0), pid, process_started"
)
_CYCLE = (
    "cycle, phase, state, first_step, end_step, reseed, verdict, evidence, exhausted, proposals, new_examples,"
    " learnable, train_s"
)


def is_born(run: RunDir) -> bool:
    """Whether the store exists and holds the run's row, which a crash may prevent. Others report damage."""
    if not run.store.exists():
        return False
    try:
        with closing(read_only(run.store)) as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                return bool(connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone())
            return bool(connection.execute("SELECT 1 FROM runs").fetchone())
    except sqlite3.Error:
        # A journal exists only before a store enters WAL mode: this store was never completed.
        return not run.store_companions[-1].exists()


class Reader:
    """A read-only view of one run's store. Each method sees what was committed when it was called."""

    def __init__(self, connection: sqlite3.Connection, run: RunDir) -> None:
        self.connection = connection
        self.run = run
        self._decoded = lru_cache(maxsize=DECODED)(json.loads)
        """Metrics that were read before: a commit adds one row, and hundreds are read again. Nobody changes them."""
        self._seen = lru_cache(maxsize=DECODED)(self._facts)
        """The same of whole validations."""
        self._newest: tuple[int, History] | None = None
        """`PRAGMA data_version` and what was read at it: it changes with each commit of another connection."""

    @classmethod
    def open(cls, run: RunDir) -> Reader:
        """Raises LonghaulError: INPUT if the run does not exist; STORE, DISK, PERMISSION, LOCKED if unreadable."""
        if not run.store.exists():
            raise LonghaulError(
                f"there is no run '{run.name}' in {run.root.parent}",
                kept="nothing was changed",
                next_command=f"python -m orchestrator run --run {run.name}",
                exit_code=ExitCode.INPUT,
            )
        try:
            connection = read_only(run.store)
            is_there = connection.execute("SELECT 1 FROM runs LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise store_error(run, error) from error
        if not is_there:
            raise damaged(run, "the row of the run is missing")
        return cls(connection, run)

    def close(self) -> None:
        self.connection.close()

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Raises LonghaulError, as `open` does."""
        try:
            return self.connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise store_error(self.run, error) from error

    # --- for decisions ---------------------------------------------------------------------------------------

    def history(self) -> History:
        """What was committed when it was called. Reads it only if it is not what the last call read."""
        version = self._rows("PRAGMA data_version")[0][0]
        if self._newest is None or self._newest[0] != version:
            self._newest = version, self._history()
        return self._newest[1]

    def _history(self) -> History:
        run = self._rows("SELECT run_id, name, state, head, reseeds, stop_reason, created_at, heartbeat_at FROM runs")[
            0
        ]
        head = self.checkpoint(run[3]) if run[3] else None
        # The oldest uncommitted cycle: after a walk back over several cycles, each is repeated in order.
        newest = self._rows(
            f"SELECT {_CYCLE} FROM cycles WHERE state<>'committed' ORDER BY cycle LIMIT 1"
        ) or self._rows(f"SELECT {_CYCLE} FROM cycles ORDER BY cycle DESC LIMIT 1")
        recent = self._rows(
            f"SELECT {_CYCLE} FROM cycles WHERE state='committed' ORDER BY cycle DESC LIMIT ?", [WINDOW]
        )
        answers: Answers = {}
        scores: Scores = {}
        all_problems = cost = None
        version = self._rows("PRAGMA user_version")[0][0]
        if newest:
            first = min(row[0] for row in (*newest, *recent))
            if version >= WITH_ANSWERS:
                answers = answers_of(self.connection, first)
                all_problems, cost = self._rows("SELECT all_problems FROM runs")[0][0], self._validation_cost(version)
            scores = self._scores([row[0] for row in (*newest, *recent)], answers, version)
        current = _cycle(newest[0], scores) if newest else None
        totals = self._rows(
            "SELECT cycles_done, new_examples, train_s FROM totals"
            if version >= WITH_TOTALS
            else "SELECT count(*) FILTER (WHERE state='committed' AND cycle>0), coalesce(sum(new_examples),0),"
            " coalesce(sum(train_s),0.0) FROM cycles"
        )[0]
        first_suite = self._rows("SELECT suite FROM validations ORDER BY rowid LIMIT 1")
        seeding_s = self._rows(
            "SELECT coalesce(sum(span), 0.0) FROM (SELECT max(t_mono) - min(t_mono) AS span FROM events"
            " WHERE cycle=0 AND role='train' GROUP BY attempt)"
        )[0][0]
        requests: dict[str, tuple[int, float]] = {}
        if version >= WITH_REQUESTS:
            rows = self._rows("SELECT kind, step, asked_at FROM requests")
            requests = {kind: (step, at) for kind, step, at in rows}
        return History(
            run_id=run[0],
            name=run[1],
            state=RunState(run[2]),
            head=head,
            reseeds=run[4],
            stop_reason=run[5],
            created_at=run[6],
            heartbeat_at=run[7],
            current=current,
            recent=tuple(_cycle(row, scores) for row in reversed(recent)),
            failures=self._failures(version),
            last_attempt=self._last_attempts(current.cycle) if current else {},
            first_validation=self._validation(first_suite, "step ASC"),
            last_validation=self._validation(first_suite, "step DESC"),
            best_validation=self._validation(first_suite, "accuracy DESC, step ASC"),
            cycles_done=totals[0],
            examples=totals[1],
            training_s=totals[2],
            seeding_s=seeding_s,
            reductions=self._reductions(),
            all_problems=None if all_problems is None else bool(all_problems),
            validation_cost=cost,
            paused_at=requests[PAUSE][1] if PAUSE in requests else None,
            validation_asked=requests[VALIDATE][0] if VALIDATE in requests else None,
            is_head_validated=bool(run[3] and self._rows("SELECT 1 FROM validations WHERE checkpoint_id=?", [run[3]])),
        )

    def _validation_cost(self, version: int) -> ValidationCost | None:
        """Cost of the newest validation, as its worker measured it; None if an older version did not report it."""
        newest = self._rows(
            "SELECT cycle, attempt FROM validations WHERE suite=(SELECT suite FROM validations ORDER BY rowid LIMIT 1)"
            f"{_unasked(version)} ORDER BY step DESC LIMIT 1"
        )
        if not newest:
            return None
        rows = self._rows(
            "SELECT sum(json_extract(payload, '$.seconds')), sum(json_extract(payload, '$.metrics.mean.n')),"
            " sum(json_extract(payload, '$.available')), count(*) - count(json_extract(payload, '$.available'))"
            " FROM events WHERE cycle=? AND attempt=? AND type=?",
            [*newest[0], event_kinds.VALIDATION.name],
        )
        seconds, asked, available, unsaid = rows[0]
        return ValidationCost(seconds, int(asked), int(available)) if asked and not unsaid else None

    def _scores(self, cycles: Sequence[int], answers: Answers, version: int) -> Scores:
        """The validations of these cycles, by cycle, without those that a person asked for."""
        found: Scores = {}
        of_these = f"cycle IN ({','.join('?' * len(cycles))}){_unasked(version)} ORDER BY rowid"
        for row in self._rows(f"SELECT {_VALIDATION} FROM validations WHERE {of_these}", cycles):
            cycle, suite = row[0], row[2]
            found.setdefault(cycle, []).append(self._facts(row, answers.get((cycle, suite))))
        return found

    def _facts(self, row: Sequence[Any], answers: dict[str, AnswerBits] | None = None) -> ValidationFacts:
        cycle, step, suite, accuracy, correct, n, metrics = row
        return ValidationFacts(cycle, step, suite, accuracy, correct, n, self._decoded(metrics), answers or {})

    def _validation(self, suites: Sequence[Sequence[str]], order: str) -> ValidationFacts | None:
        """The first one of the first suite, in this order."""
        if not suites:
            return None
        sql = f"SELECT {_VALIDATION} FROM validations WHERE suite=? ORDER BY {order} LIMIT 1"
        rows = self._rows(sql, suites[0])
        return self._facts(rows[0]) if rows else None

    def _failures(self, version: int) -> tuple[AttemptFacts, ...]:
        """Failed attempts since the newest one that progressed, succeeded or stopped on request, without those that
        are forgiven."""
        forgiven = "forgiven" if version >= WITH_FORGIVEN else "0"
        failures = []
        for is_forgiven, *row in self._rows(
            f"SELECT {forgiven}, {_ATTEMPT} FROM attempts ORDER BY rowid DESC LIMIT 64"
        ):
            facts = _attempt(row)
            if facts.state in (AttemptState.SUCCEEDED, AttemptState.STOPPED):
                break
            if facts.state == AttemptState.FAILED and not is_forgiven:
                failures.append(facts)
            if facts.progressed:
                break
        return tuple(reversed(failures))

    def _last_attempts(self, cycle: int) -> dict[str, int]:
        return dict(self._rows("SELECT role, max(attempt) FROM attempts WHERE cycle=? GROUP BY role", [cycle]))

    def _reductions(self) -> int:
        return int(self._rows("SELECT coalesce(max(reductions), 0) FROM attempts WHERE reductions > 0")[0][0])

    def open_attempts(self) -> tuple[AttemptFacts, ...]:
        """Attempts whose row is not closed, oldest first."""
        rows = self._rows(
            f"SELECT {_ATTEMPT} FROM attempts WHERE state IN"
            " ('planned','starting','running','checkpointing','stopping','hung') ORDER BY rowid"
        )
        return tuple(_attempt(row) for row in rows)

    def node_failures(self) -> tuple[NodeFailure, ...]:
        """Nodes that failed under an attempt, oldest first."""
        if self._rows("PRAGMA user_version")[0][0] < WITH_NODES:
            return ()
        rows = self._rows("SELECT node, reason, cycle, attempt, at FROM node_failures ORDER BY rowid")
        return tuple(NodeFailure(*row) for row in rows)

    def end_step(self, cycle: int) -> int:
        """One past the last step of a cycle; -1 if there is no such row."""
        rows = self._rows("SELECT end_step FROM cycles WHERE cycle=?", [cycle])
        return int(rows[0][0]) if rows else -1

    def token_of(self, cycle: int, role: str, attempt: int) -> str:
        """Token of an attempt; empty if there is no such row."""
        rows = self._rows("SELECT token FROM attempts WHERE cycle=? AND role=? AND attempt=?", [cycle, role, attempt])
        return str(rows[0][0]) if rows else ""

    def knows(self, token: str) -> bool:
        """Whether an attempt has this token."""
        return bool(self._rows("SELECT 1 FROM attempts WHERE token=?", [token]))

    def checkpoint(self, checkpoint_id: str) -> CheckpointFacts | None:
        rows = self._rows(f"SELECT {_CHECKPOINT} FROM checkpoints WHERE checkpoint_id=?", [checkpoint_id])
        return _checkpoint(rows[0]) if rows else None

    def checkpoints(self) -> tuple[CheckpointFacts, ...]:
        """All checkpoints that are not deleted, oldest first."""
        rows = self._rows(f"SELECT {_CHECKPOINT} FROM checkpoints WHERE state <> 'deleted' ORDER BY step, created_at")
        return tuple(_checkpoint(row) for row in rows)

    def best_checkpoints(self) -> dict[str, str]:
        """suite -> checkpoint_id of its best validation; the earlier wins a tie. One that was damaged is none."""
        rows = self._rows(
            "SELECT v.suite, v.checkpoint_id FROM checkpoints c CROSS JOIN validations v USING (checkpoint_id)"
            " WHERE c.state <> 'deleted' AND c.state = 'committed' ORDER BY v.accuracy DESC, v.step ASC"
        )
        best: dict[str, str] = {}
        for suite, checkpoint_id in rows:
            best.setdefault(suite, checkpoint_id)
        return best

    def validation_of(self, checkpoint_id: str, suite: str) -> ValidationFacts | None:
        """The score of one checkpoint on one suite."""
        found = self._rows(
            f"SELECT {_VALIDATION} FROM validations WHERE checkpoint_id=? AND suite=?", [checkpoint_id, suite]
        )
        return self._facts(found[0]) if found else None

    # --- for displays ----------------------------------------------------------------------------------------

    def profile_json(self) -> str:
        """The profile as stored. Raises LonghaulError (STORE) if it no longer matches its sha256."""
        import hashlib  # not imported by every command

        text, sha256 = self._rows("SELECT profile, profile_sha256 FROM runs")[0]
        if hashlib.sha256(str(text).encode()).hexdigest() != sha256:
            raise damaged(self.run, "its profile does not match the stored sha256")
        return str(text)

    def steps(self, limit: int = 2000) -> tuple[StepFacts, ...]:
        """The last `limit` trained steps, and those of the open attempt beyond the head, oldest first."""
        rows = self._rows(
            "SELECT step, cycle, coalesce(seconds, 0), metrics FROM steps"
            f" WHERE {_THAT_COUNT} ORDER BY step DESC LIMIT ?",
            [limit],
        )
        return tuple(StepFacts(r[0], r[1], r[2], self._decoded(r[3])) for r in reversed(rows))

    def steps_between(self, first: int, last: int | None) -> Iterator[StepFacts]:
        """The same steps from `first` to `last`, oldest first; last: None for the newest."""
        sql = (
            "SELECT step, cycle, coalesce(seconds, 0), metrics FROM steps"
            f" WHERE step BETWEEN ? AND ? AND ({_THAT_COUNT}) ORDER BY step"
        )
        for row in self._rows(sql, [first, _LAST if last is None else last]):
            yield StepFacts(row[0], row[1], row[2], json.loads(row[3]))

    def series(
        self, metrics: Sequence[str], points: int = POINTS, *, first: int = 1, last: int | None = None
    ) -> Thinned:
        """Metrics over the steps from `first` to `last`, the same as of `steps`, in at most `points` buckets.

        last: None for the newest. Takes .5 s of a million steps. Raises LonghaulError, as `open` does.
        """
        head = int(self._rows("SELECT coalesce(max(step), 0) FROM steps WHERE trained=1")[0][0])
        tail = self._rows(
            f"SELECT step, {', '.join(COLUMNS)}, metrics FROM steps WHERE step>? AND ({_THAT_COUNT}) ORDER BY step",
            [head],
        )
        newest = tail[-1][0] if tail else head
        try:
            end = newest if last is None else min(last, newest)
            return read_series(self.connection, metrics, points, max(1, first), end, tail)
        except sqlite3.Error as error:
            raise store_error(self.run, error) from error

    def metric_names(self) -> list[str]:
        """What the newest step reported, and the first one, sorted."""
        ends = (
            "SELECT metrics FROM steps WHERE trained=1 ORDER BY step LIMIT 1",
            f"SELECT metrics FROM steps WHERE {_THAT_COUNT} ORDER BY step DESC LIMIT 1",
        )
        return sorted({name for sql in ends for (text,) in self._rows(sql) for name in json.loads(text)})

    def thinned_validations(self, points: int = POINTS) -> tuple[ValidationFacts, ...]:
        """At most `points` of each suite, oldest first: the ends, and the worst and best of each stretch between."""
        by_suite: dict[str, list[tuple[float, int]]] = {}
        for suite, accuracy, number in self._rows(
            "SELECT suite, accuracy, rowid FROM validations ORDER BY suite, step"
        ):
            by_suite.setdefault(suite, []).append((accuracy, number))
        kept = [number for rows in by_suite.values() for _, number in extremes(rows, points)]
        sql = f"SELECT {_VALIDATION} FROM validations WHERE rowid=?"
        found = [self._facts(self._rows(sql, [number])[0]) for number in kept]
        return tuple(sorted(found, key=lambda one: one.step))

    def mean_scores(self, suite: str) -> list[tuple[int, float, float, float]]:
        """(step, greedy accuracy, its interval's ends) of every validation of a suite, oldest first.

        Both ends are the accuracy where no interval was stored.
        """
        rows = self._rows("SELECT step, accuracy, metrics FROM validations WHERE suite=? ORDER BY step", [suite])
        means = ((step, accuracy, json.loads(metrics).get("mean", {})) for step, accuracy, metrics in rows)
        return [(step, value, mean.get("low", value), mean.get("high", value)) for step, value, mean in means]

    def cycle_times(self, cycles: int = NEWEST_CYCLES, steps_read: int = STEPS_READ) -> list[CycleTime]:
        """What the time of the newest committed cycles with steps went into, oldest first.

        steps_read: no further cycle is read once so many steps were.
        """
        rows = self._rows(
            "SELECT cycle, started_at, committed_at FROM cycles WHERE state='committed' AND cycle>0"
            " ORDER BY cycle DESC LIMIT ?",
            [cycles],
        )
        found: list[CycleTime] = []
        read = 0
        for cycle, begun, committed in rows:
            if read >= steps_read:
                break
            steps = self._rows(
                "SELECT t_wall, coalesce(seconds, 0), metrics FROM trained_steps WHERE cycle=? ORDER BY step", [cycle]
            )
            validated = self._rows(
                "SELECT min(t_wall) FILTER (WHERE type=?), max(t_wall) FILTER (WHERE type=?) FROM events"
                " WHERE cycle=? AND role='validate'",
                [event_kinds.STARTED.name, event_kinds.DONE.name, cycle],
            )[0]
            read += len(steps)
            if steps:
                timed = [(end, seconds, json.loads(metrics)) for end, seconds, metrics in steps]
                found.append(time_of(cycle, (begun, committed), timed, validated if all(validated) else None))
        return found[::-1]

    def start_times(self, cycles: int = NEWEST_CYCLES) -> list[StartTime]:
        """What the starts of the attempts that succeeded took, in the newest committed cycles, oldest first."""
        kinds = (event_kinds.STARTED.name, event_kinds.PATH.name, event_kinds.MEMORY.name)
        rows = self._rows(
            "SELECT a.cycle, a.role, a.started_at, json_group_object(e.type, json_array(e.t_wall, json(e.payload)))"
            " FROM attempts a JOIN events e USING (cycle, role, attempt)"
            " WHERE a.state='succeeded' AND e.type IN (?, ?, ?)"
            " AND a.cycle IN (SELECT cycle FROM cycles WHERE state='committed' ORDER BY cycle DESC LIMIT ?)"
            " GROUP BY a.cycle, a.role, a.attempt HAVING max(e.type=?) ORDER BY a.started_at",
            [*kinds, cycles, event_kinds.STARTED.name],
        )
        return [start_of(cycle, role, ordered, json.loads(events)) for cycle, role, ordered, events in rows]

    def last_trained(self) -> int:
        """The newest committed step; 0 without any."""
        return int(self._rows("SELECT coalesce(max(step), 0) FROM steps WHERE trained=1")[0][0])

    def step_mark(self, step: int) -> tuple[Any, ...] | None:
        """Tells the committed row of a step from another one of the same step; None if it is not committed."""
        rows = self._rows("SELECT cycle, attempt, seq, t_wall FROM steps WHERE trained=1 AND step=?", [step])
        return tuple(rows[0]) if rows else None

    def trained_between(self, first: int, last: int) -> list[tuple[int, str]]:
        """(step, metrics as JSON) of committed steps from `first` to `last`, oldest first."""
        sql = "SELECT step, metrics FROM steps WHERE trained=1 AND step BETWEEN ? AND ? ORDER BY step"
        return self._rows(sql, [first, last])

    def open_steps(self, limit: int) -> list[tuple[int, str]]:
        """(step, metrics as JSON) of the newest `limit` steps beyond the head that count, oldest first."""
        rows = self._rows(
            f"SELECT step, metrics FROM steps WHERE step>? AND ({_THAT_COUNT}) ORDER BY step DESC LIMIT ?",
            [self.last_trained(), limit],
        )
        return list(reversed(rows))

    def step_seconds(self, limit: int) -> list[float]:
        """Durations of the last `limit` of these steps that were timed, oldest first."""
        rows = self._rows(
            f"SELECT seconds FROM steps WHERE seconds > 0 AND ({_THAT_COUNT}) ORDER BY step DESC LIMIT ?", [limit]
        )
        return [seconds for (seconds,) in reversed(rows)]

    def trained_after(self, step: int, limit: int) -> list[tuple[int, float, str]]:
        """(step, UTC seconds, metrics as JSON) of the first `limit` committed steps after `step`, oldest first."""
        sql = "SELECT step, t_wall, metrics FROM steps WHERE trained=1 AND step>? ORDER BY step LIMIT ?"
        return self._rows(sql, [step, limit])

    def validated_after(self, step: int, last: int | None = None) -> list[tuple[int, float, dict[str, Any]]]:
        """(step, UTC seconds, suite -> metrics) of each validated checkpoint after `step`, oldest first.

        last: up to this step; None: to the newest.
        """
        rows = self._rows(
            "SELECT step, max(created_at), json_group_object(suite, json(metrics)) FROM validations WHERE step>?"
            " AND step<=? GROUP BY checkpoint_id ORDER BY step",
            [step, _LAST if last is None else last],
        )
        return [(at_step, at, json.loads(suites)) for at_step, at, suites in rows]

    def validations(self, limit: int = 2000) -> tuple[ValidationFacts, ...]:
        """The last `limit` validations of all suites, oldest first."""
        rows = self._rows(f"SELECT {_VALIDATION} FROM validations ORDER BY step DESC LIMIT ?", [limit])
        return tuple(self._seen(row) for row in reversed(rows))

    def events(self, limit: int = 50) -> tuple[EventFacts, ...]:
        """The newest events, oldest first. Text comes from workers: escape it for display."""
        rows = self._rows("SELECT t_wall, cycle, step, type, payload FROM events ORDER BY rowid DESC LIMIT ?", [limit])
        return tuple(EventFacts(r[0], r[1], r[2], r[3], _event_text(json.loads(r[4]))) for r in reversed(rows))

    def events_with(self, term: str, limit: int) -> list[EventFacts]:
        """The newest events whose type or text contains `term`, in any case, oldest first.

        Searches the newest EVENTS_SEARCHED. Text comes from workers: escape it for display.
        """
        stored = json.dumps(term)[1:-1].lower()  # as it stands in the JSON of the payload
        where = "rowid > ? AND (instr(lower(type), ?) OR instr(lower(payload), ?))" if term else "rowid > ?"
        rows = self._rows(
            f"SELECT t_wall, cycle, step, type, payload FROM events WHERE {where} ORDER BY rowid DESC LIMIT ?",
            [max(0, self.last_event() - EVENTS_SEARCHED), *([term.lower(), stored] if term else []), limit],
        )
        return [EventFacts(r[0], r[1], r[2], r[3], _event_text(json.loads(r[4]))) for r in reversed(rows)]

    def last_event(self) -> int:
        """Number of the newest event; 0 without any."""
        return int(self._rows("SELECT coalesce(max(rowid), 0) FROM events")[0][0])

    def events_after(self, number: int) -> list[tuple[int, EventFacts]]:
        """Events with a higher number, each with its own, oldest first. Text comes from workers."""
        sql = "SELECT rowid, t_wall, cycle, step, type, payload FROM events WHERE rowid>? ORDER BY rowid"
        rows = self._rows(sql, [number])
        return [(r[0], EventFacts(r[1], r[2], r[3], r[4], _event_text(json.loads(r[5])))) for r in rows]

    def examples(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest tasks, newest first. Programs are model output: escape them for display."""
        names = ("task", "step", "program", "input", "output", "solve_rate")
        rows = self._rows(f"SELECT {', '.join(names)} FROM examples ORDER BY step DESC LIMIT ?", [limit])
        return [dict(zip(names, row, strict=True)) for row in rows]


def _unasked(version: int) -> str:
    return " AND asked=0" if version >= WITH_REQUESTS else ""


def _checkpoint(row: Sequence[Any]) -> CheckpointFacts:
    identity, parent, cycle, step, path, digest, size, verified, is_end, state = row
    return CheckpointFacts(identity, parent, cycle, step, path, digest, size, bool(verified), bool(is_end), state)


def _cycle(row: Sequence[Any], scores: Scores) -> CycleFacts:
    cycle, phase, state, first, end, reseed, verdict, evidence, exhausted, proposals, new, learnable, train_s = row
    return CycleFacts(
        cycle,
        phase,
        CycleState(state),
        first,
        end,
        reseed,
        verdict,
        evidence,
        bool(exhausted),
        proposals,
        new,
        learnable,
        train_s,
        tuple(scores.get(cycle, ())),
    )


def _attempt(row: Sequence[Any]) -> AttemptFacts:
    """Columns must be in the order of the record's fields."""
    facts = AttemptFacts(*row)
    return replace(facts, state=AttemptState(facts.state), progressed=bool(facts.progressed))


def _event_text(payload: dict[str, Any]) -> str:
    if "text" in payload:
        return str(payload["text"])
    return ", ".join(f"{name} {value}" for name, value in payload.items() if not isinstance(value, dict | list))
