"""The writing connection to state.db: opened, migrated, checked, backed up; transactions with their durability.

WAL, foreign keys, explicit BEGIN IMMEDIATE. `synchronous` is FULL for what was promised to a person (checkpoints,
cycles, states) and NORMAL for what can be ingested again from files.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.crash import crash_point
from state.layout import RunDir
from state.tables import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION

_ABSENT = [name for name in ("numpy", "pandas") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_ABSENT))  # type: ignore[arg-type]
try:  # sqlite_utils takes them where it can: 0.1 s and 20 MB for column types that no table here has
    from sqlite_utils import Database
finally:
    for _name in _ABSENT:
        del sys.modules[_name]

BACKUPS_KEPT = 3
PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "busy_timeout=5000",
    "wal_autocheckpoint=1000",
    "trusted_schema=OFF",
    "cell_size_check=ON",
)


class WritingConnection:
    """The only connection that writes. `state.store.Store` adds what is written."""

    def __init__(self, run: RunDir, *, may_create: bool) -> None:
        """Open and migrate. Raises LonghaulError: VERSION (written by a newer program), STORE, DISK, PERMISSION."""
        self.run = run
        existed = run.store.exists()
        if not existed and not may_create:
            raise LonghaulError(
                f"run '{run.name}' has no store at {run.store}",
                kept="nothing was changed",
                next_command="python -m orchestrator status",
                exit_code=ExitCode.STORE,
            )
        try:
            connection = sqlite3.connect(run.store, isolation_level=None, timeout=5.0)
            self.db = Database(connection, execute_plugins=False)
            self._prepare()
        except sqlite3.DatabaseError as error:
            raise store_error(run, error) from error

    def _prepare(self) -> None:
        with suppress(OSError):
            self.run.store.chmod(0o600)
        version = int(self.db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise LonghaulError(
                f"run '{self.run.name}' was written by a newer Longhaul "
                f"(store version {version}; this program knows {SCHEMA_VERSION})",
                kept="the run is untouched",
                next_command="git pull && make setup",
                exit_code=ExitCode.VERSION,
            )
        for pragma in PRAGMAS:
            self.db.execute(f"PRAGMA {pragma}")
        if 0 < version < SCHEMA_VERSION:
            self.backup(f"state.db.v{version}.bak")
        for number in range(version, SCHEMA_VERSION):
            with self.transaction():
                for statement in filter(str.strip, MIGRATIONS[number].split(";")):
                    self.db.execute(statement)
                crash_point("store.in_migration")
                self.db.execute(f"PRAGMA user_version={number + 1}")
                self.db.execute(f"PRAGMA application_id={APPLICATION_ID}")

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.db.conn.close()

    @contextmanager
    def transaction(self, *, durable_commit: bool = True) -> Iterator[None]:
        """BEGIN IMMEDIATE ... COMMIT. durable_commit=False may lose the newest rows with the power, never the order."""
        self.db.execute(f"PRAGMA synchronous={'FULL' if durable_commit else 'NORMAL'}")
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            crash_point("store.before_commit")
            self.db.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError) and not isinstance(
                error, sqlite3.IntegrityError
            ):
                raise store_error(self.run, error) from error
            raise

    def check(self) -> None:
        """Raises LonghaulError(STORE) unless SQLite's own quick check is clean."""
        try:
            verdict = self.db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise store_error(self.run, error) from error
        if verdict != "ok":
            raise store_error(self.run, sqlite3.DatabaseError(verdict))

    def backup(self, name: str) -> Path:
        """A consistent copy in backups/, durable when this returns; the last BACKUPS_KEPT numbered ones stay."""
        self.run.backups.mkdir(mode=0o700, exist_ok=True)
        target, temporary = self.run.backups / name, self.run.backups / f".{name}.tmp"
        temporary.unlink(missing_ok=True)
        self.db.execute("VACUUM INTO ?", [str(temporary)])
        durable.fsync_file(temporary)
        temporary.replace(target)
        durable.fsync_dir(self.run.backups)
        for old in sorted(self.run.backups.glob("cycle-*.db"))[:-BACKUPS_KEPT]:
            old.unlink(missing_ok=True)
        return target


def store_error(run: RunDir, error: Exception) -> LonghaulError:
    """What a person is told when SQLite fails: disk, permission or damage."""
    text = str(error)
    if "readonly" in text or "unable to open" in text or "permission" in text.lower():
        return LonghaulError(
            f"the store of run '{run.name}' cannot be written: {text}",
            kept="everything that was committed",
            next_command=f"ls -ld {run.root} {run.store}",
            exit_code=ExitCode.PERMISSION if not os.access(run.root, os.W_OK) else ExitCode.DISK,
        )
    if "full" in text or "disk I/O" in text:
        return LonghaulError(
            f"the disk of run '{run.name}' is full or failing: {text}",
            kept="the head checkpoint and everything that was committed",
            next_command=f"df -h {run.root}",
            exit_code=ExitCode.DISK,
        )
    return LonghaulError(
        f"the store of run '{run.name}' is damaged: {text}",
        kept=f"checkpoints in {run.checkpoints} and back-ups in {run.backups}",
        next_command=f"ls {run.backups}",
        exit_code=ExitCode.STORE,
    )
