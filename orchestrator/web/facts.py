"""What the page shows of a run, as JSON values, read from its store without a lock and without writing.

Text of a model, of workers and of file names passes through unescaped: the page sets it as text, never as markup.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.alive import master_pid
from orchestrator.commands.top import Watched, is_interrupted
from orchestrator.display.scores import Score, TaskScores, task_scores
from orchestrator.display.view import EVENT_WORDS, View
from orchestrator.display.wording import TASK_NAMES, among, pairs
from orchestrator.evaluation.render import how, scores, target_of
from orchestrator.explaining import page_of
from orchestrator.report.facts import failed_attempts
from orchestrator.runs import all_runs
from orchestrator.web.charts import charts_of, listed
from orchestrator.web.filling import Filling
from orchestrator.web.series import rounded
from profiles.errors import LonghaulError
from state import event_kinds
from state.evaluations import EvaluationDir, read_evaluations
from state.history import CycleFacts, ValidationFacts
from state.layout import RunDir, name_problem
from state.opening import unexpected
from state.reader import Reader
from state.series import Spread
from state.states import UNDER_A_MASTER

EXPLAIN_EVERY_S = 10.0
"""The sentences take a tenth of a second to find."""
POINTS = 400
"""Validations in a curve at most."""
MOST_NAMES = 100
"""Metrics in one request: those of all charts, about 40, and eight more that a person chose."""
ROWS = 60
EVENTS = 100
EVENTS_SEARCHED = 50_000
"""Rows of the log that one request looks through; a further one goes on where it ended."""
QUIET = event_kinds.STEP.name
STEPS_LISTED = 300
"""Newest steps with rollouts on disk."""


def runs_of(folder: Path, now: float) -> list[dict[str, Any]]:
    """Every run of the folder, newest first; one that cannot be read is there too, with the reason."""
    runs = {found.run.name: found.run for found in all_runs(folder)}
    if folder.is_dir():
        runs |= {path.name: RunDir(path) for path in sorted(folder.iterdir()) if path.name not in runs}
    rows = [_brief(run, now) for name, run in runs.items() if not name_problem(name)]
    return [row for row in rows if row is not None]


def _brief(run: RunDir, now: float) -> dict[str, Any] | None:
    """None for a directory without a store."""
    try:
        return _read_brief(run, now) if run.store.is_file() else None
    except LonghaulError as error:
        failure = error
    except (OSError, sqlite3.Error) as error:
        failure = unexpected(run, error)
    return {"run": run.name, "state": "unreadable", "why": failure.what, "next": failure.next_command}


def _read_brief(run: RunDir, now: float) -> dict[str, Any]:
    reader = Reader.open(run)
    try:
        state, heartbeat, created, step = reader.connection.execute(
            "SELECT r.state, heartbeat_at, r.created_at, coalesce(c.step, 0) FROM runs r"
            " LEFT JOIN checkpoints c ON c.checkpoint_id=r.head"
        ).fetchone()
        last = reader.connection.execute(
            "SELECT accuracy FROM validations WHERE suite=(SELECT suite FROM validations ORDER BY rowid LIMIT 1)"
            " ORDER BY step DESC LIMIT 1"
        ).fetchone()
    finally:
        reader.close()
    age = max(0.0, now - heartbeat)
    lives = master_pid(run, age) is not None
    return {
        "run": run.name,
        "state": "interrupted" if state in UNDER_A_MASTER and not lives else state,
        "lives": lives,
        "created_at": created,
        "heartbeat_age_s": age,
        "step": step,
        "accuracy": last[0] if last else None,
    }


class Watch:
    """One run that a page looks at. For one thread alone, because SQLite's connections are."""

    def __init__(self, run: RunDir) -> None:
        """Raises LonghaulError if the store cannot be read."""
        self.run = run
        self.store = _identity(run)
        self.reader = Reader.open(run)
        self._watched = Watched(run, self.reader)
        self._filling = Filling()
        self._explained: tuple[float, list[str]] = (0.0, [])
        self._scores: tuple[Any, list[dict[str, Any]]] | None = None

    def close(self) -> None:
        self.reader.close()

    @property
    def is_stale(self) -> bool:
        """Whether another file is the store now, as after `recover`."""
        return _identity(self.run) != self.store

    # --- now ----------------------------------------------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        utc = time.time()
        view, rows = self._watched.view(utc, time.monotonic()), self._watched.rows()
        self._filling.follow(self.reader)
        names = self.names()
        history = rows.history
        master = view.worker_pid is not None or self._master(utc) is not None
        return {
            **_facts_of(view),
            "state": "interrupted" if is_interrupted(history, self._master(utc)) else history.state.value,
            "lives": master,
            "heartbeat_age_s": max(0.0, utc - history.heartbeat_at),
            "now": utc,
            "cycles_done": history.cycles_done,
            "head": {"step": view.head_step, "digest": view.head_digest, "path": view.head_path},
            "explain": self._sentences(utc),
            "scores": [_score_facts(row) for row in view.scores],
            "scores_key": self._scores_key(),
            "events": [{"at": one.at, "type": one.type, "text": one.text} for one in reversed(view.events)],
            "charts": charts_of(names, view.kind),
            "metrics": listed(names),
            "profile": rows.profile.name,
        }

    def _master(self, utc: float) -> int | None:
        history = self._watched.rows().history
        return master_pid(self.run, max(0.0, utc - history.heartbeat_at))

    def _sentences(self, utc: float) -> list[str]:
        at, said = self._explained
        if not said or not 0 <= utc - at < EXPLAIN_EVERY_S:
            rows = self._watched.rows()
            age = max(0.0, utc - rows.history.heartbeat_at)
            sentences = page_of(rows.history, rows.profile, rows.steps, self._master(utc), age)
            said = [among(self.run.folder, one) for one in sentences]
            self._explained = utc, said
        return said

    def names(self) -> list[str]:
        """Metrics that any step reports."""
        newest = [name for step in self._watched.rows().steps[-1:] for name in step.metrics]
        return sorted({*self._filling.series.names, *newest})

    # --- curves -------------------------------------------------------------------------------------------------------

    def series(self, names: Sequence[str], key: str, first: int) -> dict[str, Any]:
        self._filling.follow(self.reader)
        return self._filling.points(self.reader, names[:MOST_NAMES], key, first)

    def window(self, names: Sequence[str], first: int, last: int) -> dict[str, Any]:
        """A range of steps alone."""
        found = self.reader.series(names[:MOST_NAMES], first=max(1, first), last=last)
        lines = {name: _line(spreads) for name, spreads in found.metrics.items() if any(spreads)}
        return {"x": found.middles, "every": found.every, "lines": lines}

    def refine(self) -> bool:
        """Read a piece of the series whole; whether there is more to read."""
        return self._filling.refine(self.reader)

    def _scores_key(self) -> str:
        row = self.reader.connection.execute("SELECT count(*), coalesce(max(rowid), 0) FROM validations").fetchone()
        return f"{row[0]}.{row[1]}"

    def scores(self) -> dict[str, Any]:
        """Validations of each suite by task, the run's first suite first."""
        key = self._scores_key()
        if self._scores is None or self._scores[0] != key:
            first = self._watched.rows().history.first_validation
            self._scores = key, suites_of(self.reader.thinned_validations(POINTS), first.suite if first else "")
        return {"key": key, "suites": self._scores[1]}

    # --- lists --------------------------------------------------------------------------------------------------------

    def events(self, before: int, kind: str, words: str) -> dict[str, Any]:
        """Newest first, numbered below `before` (0: all). A step is an event only where its kind is asked for."""
        newest = before - 1 if before > 0 else self.reader.last_event()
        oldest = max(0, newest - EVENTS_SEARCHED)
        condition, given = ("type=?", kind) if kind else ("type<>?", QUIET)
        sql = (
            "SELECT rowid, t_wall, cycle, role, step, type, payload FROM events WHERE rowid<=? AND rowid>?"
            f" AND {condition} AND (?='' OR instr(lower(payload), ?) OR instr(type, ?)) ORDER BY rowid DESC LIMIT ?"
        )
        wanted, stored = words.lower(), json.dumps(words)[1:-1].lower()  # as it stands in the JSON of the payload
        rows = self.reader.connection.execute(sql, [newest, oldest, given, wanted, stored, wanted, EVENTS]).fetchall()
        searched = rows[-1][0] if len(rows) == EVENTS else oldest + 1
        return {"events": [_event(row) for row in rows], "before": searched if searched > 1 else 0}

    def cycles(self) -> dict[str, Any]:
        """Cycles, checkpoints, failed attempts and evaluations, newest first."""
        reader = self.reader
        history = self._watched.rows().history
        current = () if history.current is None or history.current in history.recent else (history.current,)
        head = history.head.checkpoint_id if history.head else ""
        return {
            "cycles": [_cycle(one) for one in reversed((*history.recent, *current))],
            "cycles_done": history.cycles_done,
            "checkpoints": [
                {
                    "step": one.step,
                    "cycle": one.cycle,
                    "path": one.path,
                    "digest": one.digest[:12],
                    "bytes": one.bytes,
                    "verified": one.verified,
                    "head": one.checkpoint_id == head,
                }
                for one in tuple(reversed(reader.checkpoints()))[:ROWS]
            ],
            "failures": [vars(one) for one in failed_attempts(reader)],
            "evaluations": [
                {
                    "target": target_of(one),
                    "suite": one.suite,
                    "how": how(one.settings),
                    "score": scores(one.metrics, "mean") if one.ended_at is not None else "not finished",
                }
                for one in read_evaluations(EvaluationDir.of(self.run), ROWS)
            ],
        }

    def profile(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.reader.profile_json())
        return found

    def tasks(self) -> list[dict[str, Any]]:
        """The newest tasks, newest first."""
        return [
            {
                "task": row["task"],
                "title": TASK_NAMES.get(row["task"], row["task"]),
                "step": row["step"],
                "program": row["program"],
                "pairs": pairs(str(row["input"]), str(row["output"])),
                "solve_rate": row["solve_rate"],
            }
            for row in self.reader.examples(ROWS)
        ]

    # --- rollouts -----------------------------------------------------------------------------------------------------

    def rollout_steps(self) -> list[dict[str, int]]:
        """Steps whose rollouts are on disk, newest first: those since the head, and those that retention keeps."""
        found: list[dict[str, int]] = []
        numbers = (int(path.name) for path in self.run.cycles.glob("[0-9]*") if path.name.isdigit())
        for cycle in sorted(numbers, reverse=True):  # by number: cycle 10000 comes after cycle 9999
            steps = sorted(int(path.stem[5:]) for path in self.run.rollouts(cycle).glob("step-[0-9]*.jsonl"))
            found += [{"cycle": cycle, "step": step} for step in reversed(steps)]
            if len(found) >= STEPS_LISTED:
                break
        return found[:STEPS_LISTED]

    def tokenizers(self) -> tuple[str, ...]:
        """Directories that may hold the run's tokenizer: checkpoints, newest first, then the model itself."""
        own = [str(self.run.root.absolute() / one.path) for one in reversed(self.reader.checkpoints())]
        return (*own[:20], str(Path(self._watched.rows().profile.model.path).absolute()))

    def style(self) -> str:
        return self._watched.rows().profile.model.prompt_style


def _identity(run: RunDir) -> tuple[int, int]:
    try:
        found = run.store.stat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


# --- one record each --------------------------------------------------------------------------------------------------


def _line(spreads: Sequence[Spread | None]) -> dict[str, list[float | None]]:
    parts = ("mean",) if all(one is None or one.num_steps == 1 for one in spreads) else ("mean", "low", "high")
    return {part: [None if one is None else rounded(getattr(one, part)) for one in spreads] for part in parts}


def _facts_of(view: View) -> dict[str, Any]:
    reading = view.reading
    return {
        "run": view.run,
        "kind": view.kind.training,
        "finds_tasks": view.kind.finds_tasks,
        "phase": view.phase,
        "stage": view.stage,
        "role": view.role,
        "cycle": view.cycle,
        "meter": view.meter,
        "max_cycles": view.max_cycles,
        "step": view.step,
        "step_in_cycle": view.step_in_cycle,
        "steps_in_cycle": view.steps_in_cycle,
        "cycle_left_s": view.cycle_left_s,
        "step_median_s": view.step_median_s,
        "last_reward": view.last_reward,
        "created_at": view.created_at,
        "training_s": view.training_s,
        "reseeds": view.reseeds,
        "failures": view.failures,
        "last_failure": view.last_failure,
        "stop_reason": view.stop_reason,
        "examples": view.examples,
        "worker_rss_bytes": view.worker_rss_bytes,
        "problems": None
        if reading is None
        else {"right": reading.accuracy, "steps": reading.steps, "text": reading.place},
    }


def _score_facts(row: TaskScores) -> dict[str, Any]:
    return {
        "task": row.task,
        "title": TASK_NAMES.get(row.task, row.task),
        "first": vars(row.first),
        "last": vars(row.last),
        "certain": row.is_certain,
    }


def suites_of(validations: Sequence[ValidationFacts], first: str) -> list[dict[str, Any]]:
    """Curves of each suite, `first` before the others, in each those of the mean before its tasks. (pure)

    validations: oldest first.
    """
    found = []
    for suite in sorted({one.suite for one in validations}, key=lambda name: (name != first, name)):
        rows = task_scores([one for one in validations if one.suite == suite], None)
        tasks = [
            {
                "task": row.task,
                "title": TASK_NAMES.get(row.task, row.task),
                "points": [_point(one) for one in row.scores],
            }
            for row in (*rows[-1:], *rows[:-1])
        ]
        found.append({"suite": suite, "tasks": tasks})
    return found


def _point(score: Score) -> list[float | None]:
    values = (score.greedy, score.low, score.high, score.sampled, score.worked, score.tokens, score.reward)
    return [score.step, *(None if value is None else round(value, 5) for value in values)]


def _event(row: Sequence[Any]) -> dict[str, Any]:
    number, at, cycle, role, step, kind, payload = row
    try:
        fields = json.loads(payload)
    except ValueError:
        fields = {}
    plain = {name: value for name, value in fields.items() if not isinstance(value, dict | list)}
    text = str(fields.get("text") or ", ".join(f"{name} {value}" for name, value in plain.items()))
    words = EVENT_WORDS.get(kind, "{text}").replace("{step}", str(step)).replace("{cycle}", str(cycle))
    shown = words.replace("{text}", text.replace("exit_code 0, outcome ", ""))
    return {"number": number, "at": at, "cycle": cycle, "role": role, "step": step, "type": kind, "text": shown[:2000]}


def _cycle(one: CycleFacts) -> dict[str, Any]:
    first = one.validations[0] if one.validations else None
    mean = first.metrics.get("mean", {}) if first is not None else {}
    return {
        "cycle": one.cycle,
        "phase": one.phase,
        "state": one.state.value,
        "first_step": one.first_step,
        "end_step": one.end_step,
        "greedy": mean.get("accuracy"),
        "sampled": mean.get("sampled_accuracy"),
        "new_tasks": one.new_examples,
        "learnable": one.learnable / one.proposals if one.proposals else None,
        "train_s": one.train_s,
        "verdict": one.verdict,
        "evidence": one.evidence,
    }
