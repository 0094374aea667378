"""The schema of state.db as numbered migrations; `PRAGMA user_version` counts those applied. (pure)"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

APPLICATION_ID = 0x4C4F4E47  # "LONG"

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE runs (
        run_id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        profile TEXT NOT NULL,
        profile_sha256 TEXT NOT NULL,
        seed INTEGER NOT NULL,
        program_version TEXT NOT NULL,
        state TEXT NOT NULL,
        stop_reason TEXT NOT NULL DEFAULT '',
        head TEXT REFERENCES checkpoints(checkpoint_id) DEFERRABLE INITIALLY DEFERRED,
        reseeds INTEGER NOT NULL DEFAULT 0,
        created_at REAL NOT NULL,
        heartbeat_at REAL NOT NULL
    ) STRICT;
    CREATE TABLE cycles (
        cycle INTEGER PRIMARY KEY,
        phase TEXT NOT NULL,
        first_step INTEGER NOT NULL,
        end_step INTEGER NOT NULL,
        state TEXT NOT NULL,
        reseed INTEGER NOT NULL DEFAULT 0,
        verdict TEXT NOT NULL DEFAULT '',
        evidence TEXT NOT NULL DEFAULT '',
        exhausted INTEGER NOT NULL DEFAULT 0,
        proposals INTEGER NOT NULL DEFAULT 0,
        new_examples INTEGER NOT NULL DEFAULT 0,
        learnable INTEGER NOT NULL DEFAULT 0,
        train_s REAL NOT NULL DEFAULT 0,
        started_at REAL NOT NULL,
        committed_at REAL
    ) STRICT;
    CREATE TABLE attempts (
        cycle INTEGER NOT NULL REFERENCES cycles(cycle),
        role TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        token TEXT NOT NULL UNIQUE,
        pid INTEGER NOT NULL DEFAULT 0,
        process_started REAL NOT NULL DEFAULT 0,
        state TEXT NOT NULL,
        first_step INTEGER NOT NULL,
        step_reached INTEGER NOT NULL,
        progressed INTEGER NOT NULL DEFAULT 0,
        exit_code INTEGER,
        failure TEXT NOT NULL DEFAULT '',
        message TEXT NOT NULL DEFAULT '',
        reductions INTEGER NOT NULL DEFAULT 0,
        ingest_offset INTEGER NOT NULL DEFAULT 0,
        started_at REAL NOT NULL,
        ended_at REAL,
        PRIMARY KEY (cycle, role, attempt)
    ) STRICT;
    CREATE INDEX attempts_open ON attempts(state);
    CREATE TABLE events (
        cycle INTEGER NOT NULL,
        role TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        type TEXT NOT NULL,
        step INTEGER NOT NULL,
        t_wall REAL NOT NULL,
        t_mono REAL NOT NULL,
        payload TEXT NOT NULL,
        PRIMARY KEY (cycle, role, attempt, seq)
    ) STRICT;
    CREATE TABLE steps (
        step INTEGER NOT NULL,
        cycle INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        trained INTEGER NOT NULL DEFAULT 0,
        seconds REAL,
        reward REAL,
        loss REAL,
        tokens INTEGER,
        metrics TEXT NOT NULL,
        t_wall REAL NOT NULL,
        PRIMARY KEY (step, cycle, attempt)
    ) STRICT;
    CREATE UNIQUE INDEX steps_trained ON steps(step) WHERE trained = 1;
    CREATE INDEX steps_of_attempt ON steps(cycle, attempt, step);
    CREATE VIEW trained_steps AS SELECT * FROM steps WHERE trained = 1;
    CREATE TABLE checkpoints (
        checkpoint_id TEXT PRIMARY KEY,
        parent TEXT REFERENCES checkpoints(checkpoint_id),
        cycle INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        step INTEGER NOT NULL,
        path TEXT NOT NULL,
        digest TEXT NOT NULL,
        bytes INTEGER NOT NULL,
        is_cycle_end INTEGER NOT NULL DEFAULT 0,
        state TEXT NOT NULL,
        verified INTEGER NOT NULL DEFAULT 0,
        pinned INTEGER NOT NULL DEFAULT 0,
        created_at REAL NOT NULL
    ) STRICT;
    CREATE INDEX checkpoints_kept ON checkpoints(step) WHERE state <> 'deleted';
    CREATE TABLE validations (
        checkpoint_id TEXT NOT NULL REFERENCES checkpoints(checkpoint_id),
        suite TEXT NOT NULL,
        cycle INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        step INTEGER NOT NULL,
        accuracy REAL NOT NULL,
        correct INTEGER NOT NULL,
        n INTEGER NOT NULL,
        metrics TEXT NOT NULL,
        created_at REAL NOT NULL,
        PRIMARY KEY (checkpoint_id, suite)
    ) STRICT;
    CREATE INDEX validations_by_step ON validations(suite, step);
    CREATE INDEX validations_by_cycle ON validations(cycle);
    CREATE INDEX validations_by_accuracy ON validations(suite, accuracy DESC, step);
    CREATE TABLE examples (
        example_id TEXT PRIMARY KEY,
        task TEXT NOT NULL,
        cycle INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        step INTEGER NOT NULL,
        program TEXT NOT NULL,
        input TEXT NOT NULL,
        output TEXT NOT NULL,
        solve_rate REAL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX examples_by_step ON examples(step);
    """,
    """
    CREATE TABLE problem_sets (
        set_id TEXT PRIMARY KEY,
        problems TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE answers (
        checkpoint_id TEXT NOT NULL,
        suite TEXT NOT NULL,
        task TEXT NOT NULL,
        set_id TEXT NOT NULL REFERENCES problem_sets(set_id),
        greedy BLOB NOT NULL,
        sampled BLOB,
        PRIMARY KEY (checkpoint_id, suite, task),
        FOREIGN KEY (checkpoint_id, suite) REFERENCES validations(checkpoint_id, suite) ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID;
    ALTER TABLE runs ADD COLUMN all_problems INTEGER;
    """,
    """
    CREATE TABLE node_failures (
        node TEXT NOT NULL,
        reason TEXT NOT NULL,
        cycle INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        at REAL NOT NULL
    ) STRICT;
    """,
    """
    CREATE INDEX attempts_reduced ON attempts(reductions) WHERE reductions > 0;
    CREATE INDEX validations_newest ON validations(step, suite);
    CREATE INDEX cycles_undone ON cycles(cycle) WHERE state <> 'committed';
    CREATE TABLE totals (
        cycles_done INTEGER NOT NULL,
        new_examples INTEGER NOT NULL,
        train_s REAL NOT NULL
    ) STRICT;
    INSERT INTO totals SELECT count(*) FILTER (WHERE state='committed' AND cycle>0),
        coalesce(sum(new_examples), 0), coalesce(sum(train_s), 0.0) FROM cycles;
    CREATE TRIGGER cycle_added AFTER INSERT ON cycles BEGIN
        UPDATE totals SET cycles_done=cycles_done + (NEW.state='committed' AND NEW.cycle>0),
            new_examples=new_examples + NEW.new_examples, train_s=train_s + NEW.train_s;
    END;
    CREATE TRIGGER cycle_removed AFTER DELETE ON cycles BEGIN
        UPDATE totals SET cycles_done=cycles_done - (OLD.state='committed' AND OLD.cycle>0),
            new_examples=new_examples - OLD.new_examples, train_s=train_s - OLD.train_s;
    END;
    CREATE TRIGGER cycle_changed AFTER UPDATE OF state, new_examples, train_s ON cycles BEGIN
        UPDATE totals SET
            cycles_done=cycles_done - (OLD.state='committed' AND OLD.cycle>0)
                + (NEW.state='committed' AND NEW.cycle>0),
            new_examples=new_examples - OLD.new_examples + NEW.new_examples,
            train_s=train_s - OLD.train_s + NEW.train_s;
    END;
    """,
    """
    ALTER TABLE runs ADD COLUMN row_digest TEXT NOT NULL DEFAULT '';
    ALTER TABLE cycles ADD COLUMN row_digest TEXT NOT NULL DEFAULT '';
    ALTER TABLE checkpoints ADD COLUMN row_digest TEXT NOT NULL DEFAULT '';
    """,
    """
    CREATE INDEX steps_series ON steps(step, trained, seconds, reward, loss, tokens) WHERE trained = 1;
    """,
    """
    CREATE TABLE requests (
        kind TEXT PRIMARY KEY,
        step INTEGER NOT NULL,
        asked_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
    ALTER TABLE validations ADD COLUMN asked INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE attempts ADD COLUMN forgiven INTEGER NOT NULL DEFAULT 0;
    """,
)

SEALED = {"runs": "name", "cycles": "cycle", "checkpoints": "path"}
"""Tables whose rows have a digest, and the column that names a row to a person.

A migration that gives one of them a column with a default must set every `row_digest` of it to '': they are then made
anew."""


def statements(script: str) -> Iterator[str]:
    """The statements of a script, each whole: a trigger has semicolons of its own."""
    begun = ""
    for part in script.split(";"):
        begun += part + ";"
        if sqlite3.complete_statement(begun):
            if begun.strip(" \n;"):
                yield begun
            begun = ""


WITH_ANSWERS = 2
"""First version with problem_sets, answers and runs.all_problems. Readers open older stores without migrating them."""
WITH_NODES = 3
"""First version with node_failures."""
WITH_TOTALS = 4
"""First version with totals, which triggers keep, so that no reader adds up all cycles."""
WITH_DIGESTS = 5
"""First version with row_digest."""
WITH_REQUESTS = 7
"""First version with requests and validations.asked."""
WITH_FORGIVEN = 8
"""First version with attempts.forgiven."""
SCHEMA_VERSION = len(MIGRATIONS)
