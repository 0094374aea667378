"""Results of evaluations: a folder with its own store, a lock, and a folder of answers for each evaluation.

Only the master writes a run's store, and it may train for days. Evaluations therefore go to a store beside it, written
by the command that holds the folder's lock. A model without a run gets such a folder of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.crash import crash_point
from state.layout import RunDir
from state.opening import is_busy, read_only, set_pragma
from state.tables import statements

APPLICATION_ID = 0x4C4F4E45  # "LONE"
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE evaluations (
        evaluation_id TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        step INTEGER,
        identity TEXT NOT NULL,
        path TEXT NOT NULL,
        settings TEXT NOT NULL,
        program_version TEXT NOT NULL,
        created_at REAL NOT NULL
    ) STRICT;
    CREATE TABLE suites (
        evaluation_id TEXT NOT NULL REFERENCES evaluations(evaluation_id),
        suite TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        n INTEGER NOT NULL,
        score REAL,
        low REAL,
        high REAL,
        metrics TEXT NOT NULL DEFAULT '{}',
        began_at REAL NOT NULL,
        ended_at REAL,
        PRIMARY KEY (evaluation_id, suite)
    ) STRICT;
    CREATE TABLE answers (
        evaluation_id TEXT NOT NULL,
        suite TEXT NOT NULL,
        problem_id TEXT NOT NULL,
        task TEXT NOT NULL,
        samples INTEGER NOT NULL,
        correct INTEGER NOT NULL,
        PRIMARY KEY (evaluation_id, suite, problem_id),
        FOREIGN KEY (evaluation_id, suite) REFERENCES suites(evaluation_id, suite)
    ) STRICT, WITHOUT ROWID;
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)


@dataclass(frozen=True)
class EvaluationDir:
    """The folder that holds evaluations: `runs/NAME/evaluations`, or the one named by `--out`."""

    root: Path

    @classmethod
    def of(cls, run: RunDir) -> EvaluationDir:
        return cls(run.root / "evaluations")

    @property
    def store(self) -> Path:
        return self.root / "evaluations.db"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    def folder(self, evaluation_id: str) -> Path:
        """The spec and the answers of one evaluation."""
        return self.root / evaluation_id

    def model(self, evaluation_id: str) -> Path:
        """Hard links to the checkpoint under evaluation, so that its run can prune it meanwhile."""
        return self.folder(evaluation_id) / "model"


@dataclass(frozen=True)
class Target:
    """What was evaluated. identity: a hash of its weights; step: None for a model that is no checkpoint."""

    kind: str
    """`checkpoint` or `model`."""
    name: str
    step: int | None
    identity: str
    path: str


@dataclass(frozen=True)
class SuiteFacts:
    """One suite of one evaluation. score: None until every problem is answered; `low` and `high` are its 95 % interval.

    metrics: task -> name -> value, with `mean` over the tasks.
    """

    evaluation_id: str
    target: Target
    settings: Mapping[str, Any]
    suite: str
    n: int
    answered: int
    score: float | None
    low: float | None
    high: float | None
    metrics: Mapping[str, Mapping[str, float]]
    ended_at: float | None


class EvaluationLock:
    """Allows one evaluation at a time in a folder. The worker inherits the lock, so it lasts until both have ended."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def acquire(cls, where: EvaluationDir) -> EvaluationLock | None:
        """Returns None if another process holds the lock."""
        durable.make_dir(where.root)
        with durable.explained("cannot open the lock", where.lock, kept="everything"):
            fd = os.open(where.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd)

    def release(self) -> None:
        """Keeps the file: unlinking it would let two processes in."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def holder_of(where: EvaluationDir) -> str:
    """The process id written in the lock file; empty if there is none."""
    with suppress(OSError):
        return where.lock.read_text(errors="replace").strip()[:20]
    return ""


class EvaluationStore:
    """The only writer of `evaluations.db`. Open it while holding the folder's lock."""

    def __init__(self, where: EvaluationDir) -> None:
        """Open or create, and migrate. Raises LonghaulError (VERSION, STORE, DISK, PERMISSION)."""
        self.where = where
        try:
            self.db = sqlite3.connect(where.store, isolation_level=None, timeout=5.0)
            with suppress(OSError):
                where.store.chmod(0o600)
            version = int(self.db.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA_VERSION:
                raise _newer(where, version)
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF"):
                set_pragma(self.db, pragma)
            for number in range(version, SCHEMA_VERSION):
                with self._transaction():
                    for statement in statements(MIGRATIONS[number]):
                        self.db.execute(statement)
                    self.db.execute(f"PRAGMA user_version={number + 1}")
                    self.db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        except sqlite3.Error as error:
            raise _unusable(where, error) from error

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self.db.execute("BEGIN IMMEDIATE")
            yield
            crash_point("evaluate.before_commit")
            self.db.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                raise _unusable(self.where, error) from error
            raise

    def begin(self, evaluation_id: str, target: Target, settings: Mapping[str, Any], version: str, now: float) -> None:
        """Insert the evaluation's row unless it exists."""
        with self._transaction():
            self.db.execute(
                "INSERT OR IGNORE INTO evaluations VALUES (?,?,?,?,?,?,?,?,?)",
                [
                    evaluation_id,
                    target.kind,
                    target.name,
                    target.step,
                    target.identity,
                    target.path,
                    json.dumps(settings, sort_keys=True),
                    version,
                    now,
                ],
            )

    def begin_suite(self, evaluation_id: str, suite: str, fingerprint: str, n: int, now: float) -> None:
        """Insert the suite's row. A changed fingerprint (other problems or prompts) deletes the earlier answers."""
        key = [evaluation_id, suite]
        with self._transaction():
            row = self.db.execute("SELECT fingerprint FROM suites WHERE evaluation_id=? AND suite=?", key).fetchone()
            if row is not None and row[0] == fingerprint:
                return
            self.db.execute("DELETE FROM answers WHERE evaluation_id=? AND suite=?", key)
            self.db.execute("DELETE FROM suites WHERE evaluation_id=? AND suite=?", key)
            self.db.execute(
                "INSERT INTO suites (evaluation_id, suite, fingerprint, n, began_at) VALUES (?,?,?,?,?)",
                [*key, fingerprint, n, now],
            )

    def add_answers(self, evaluation_id: str, suite: str, rows: Sequence[tuple[str, str, int, int]]) -> None:
        """rows: (problem, task, samples, correct samples). Adding a row again changes nothing."""
        with self._transaction():
            self.db.executemany(
                "INSERT OR REPLACE INTO answers VALUES (?,?,?,?,?,?)", [(evaluation_id, suite, *row) for row in rows]
            )

    def end_suite(
        self, evaluation_id: str, suite: str, score: tuple[float, float, float], metrics: Mapping[str, Any], now: float
    ) -> None:
        """score: (mean, low, high)."""
        with self._transaction():
            self.db.execute(
                "UPDATE suites SET score=?, low=?, high=?, metrics=?, ended_at=coalesce(ended_at, ?)"
                " WHERE evaluation_id=? AND suite=?",
                [*score, json.dumps(metrics, sort_keys=True), now, evaluation_id, suite],
            )


def read_evaluations(where: EvaluationDir, limit: int = 200) -> tuple[SuiteFacts, ...]:
    """Newest first; empty if nothing was evaluated. Raises LonghaulError (STORE) for a damaged store."""
    if not where.store.is_file():
        return ()
    try:
        with closing(read_only(where.store)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name='answers'").fetchone():
                return ()  # a crash interrupted the first migration
            rows = db.execute(
                "SELECT e.evaluation_id, kind, name, step, identity, path, settings, s.suite, n, (SELECT count(*) FROM"
                " answers a WHERE a.evaluation_id=s.evaluation_id AND a.suite=s.suite), score, low, high, metrics,"
                " ended_at FROM suites s JOIN evaluations e USING (evaluation_id)"
                " ORDER BY coalesce(ended_at, began_at) DESC, s.suite LIMIT ?",
                [limit],
            ).fetchall()
    except sqlite3.Error as error:
        raise _unusable(where, error) from error
    return tuple(
        SuiteFacts(
            evaluation_id=row[0],
            target=Target(*row[1:6]),
            settings=json.loads(row[6]),
            suite=row[7],
            n=row[8],
            answered=row[9],
            score=row[10],
            low=row[11],
            high=row[12],
            metrics=json.loads(row[13]),
            ended_at=row[14],
        )
        for row in rows
    )


def _newer(where: EvaluationDir, version: int) -> LonghaulError:
    return LonghaulError(
        f"{where.store} was written by a newer Longhaul (version {version}; this program knows {SCHEMA_VERSION})",
        kept="the results, untouched",
        next_command="git pull && make setup",
        exit_code=ExitCode.VERSION,
    )


def _unusable(where: EvaluationDir, error: sqlite3.Error) -> LonghaulError:
    text = str(error)
    if is_busy(error):
        return LonghaulError(
            f"another process holds a lock on {where.store}: {text}",
            kept="the answer files and the run",
            next_command=f"fuser -v {where.store}   (end the process that holds it), then the same command",
            exit_code=ExitCode.LOCKED,
        )
    code = ExitCode.STORE
    if "full" in text or "disk I/O" in text:
        code = ExitCode.DISK
    elif "readonly" in text or "unable to open" in text:
        code = ExitCode.PERMISSION
    return LonghaulError(
        f"the results in {where.store} cannot be used: {text}",
        kept="the answer files and the run",
        next_command=f"mv {where.store} {where.store}.bad   (the next evaluate rebuilds it from the answers)",
        exit_code=code,
    )
