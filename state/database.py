"""The writing connection to state.db: opens, migrates, checks and backs it up, and runs transactions.

WAL, foreign keys, explicit BEGIN IMMEDIATE. `synchronous` is FULL for facts that exist only here (checkpoints, cycles,
states) and NORMAL for those that can be ingested again from files.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from profiles.errors import ExitCode, LonghaulError
from state import durable, row_digests
from state.crash import crash_point
from state.layout import RunDir
from state.opening import BUSY_S, is_busy, set_pragma, store_error
from state.tables import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION, statements

_ABSENT = [name for name in ("numpy", "pandas") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_ABSENT))  # type: ignore[arg-type]
try:  # sqlite_utils imports them if it can: 0.1 s and 20 MB for column types that we do not use
    from sqlite_utils import Database
finally:
    for _name in _ABSENT:
        del sys.modules[_name]

BACKUPS_KEPT = 2
PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    f"busy_timeout={BUSY_S * 1000:.0f}",
    "wal_autocheckpoint=1000",
    "trusted_schema=OFF",
    "cell_size_check=ON",
)


LOCK_PATIENCE_S = 60.0
"""How long to wait for another process's lock, such as a backup program's or a sqlite3 shell's."""


_ABANDONED: list[sqlite3.Connection] = []


class Guard(Protocol):
    """Raises LonghaulError if another host holds the run by now. anew: look, however short ago that was."""

    def __call__(self, *, anew: bool = False) -> None: ...


def unguarded(*, anew: bool = False) -> None:
    """The run is on a local file system, where flock is enough."""


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")


class WritingConnection:
    """The only connection that writes. `state.store.Store` adds the statements."""

    def __init__(self, run: RunDir, *, path: Path | None = None) -> None:
        """Open and migrate the store. path: create this file instead of opening the run's.

        Raises LonghaulError: VERSION (written by a newer program), STORE, DISK, PERMISSION, LOCKED.
        """
        self.run = run
        self.say: Callable[[str], None] = _to_stderr
        """Reports that we wait for a lock."""
        self._is_durable: bool | None = None
        """What `synchronous` is set to; None: what PRAGMAS says."""
        self.guard: Guard = unguarded
        """Asked before each transaction."""
        self.incarnation = ""
        """Of the lock under which a master writes; empty: a command does."""
        if path is None and not run.store.exists():
            raise LonghaulError(
                f"run '{run.name}' has no store at {run.store}",
                kept="nothing was changed",
                next_command="python -m orchestrator status",
                exit_code=ExitCode.STORE,
            )
        try:
            connection = sqlite3.connect(path or run.store, isolation_level=None, timeout=BUSY_S)
            self.db = Database(connection, execute_plugins=False)
            self._patiently(self._prepare)
        except sqlite3.DatabaseError as error:
            raise store_error(run, error) from error

    def _patiently(self, work: Callable[[], None]) -> None:
        """Retry `work` while another process holds a lock, for LOCK_PATIENCE_S. Raises what `work` raises."""
        deadline = time.monotonic() + LOCK_PATIENCE_S
        is_reported = False
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
            if not is_reported:
                self.say(f"another process holds a lock on the store; waiting up to {LOCK_PATIENCE_S:.0f} s for it")
                is_reported = True

    def _prepare(self) -> None:
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
            set_pragma(self.db.conn, pragma)
        if 0 < version < SCHEMA_VERSION:
            self.backup(f"state.db.v{version}.bak")
        for number in range(version, SCHEMA_VERSION):
            with self.transaction():
                for statement in statements(MIGRATIONS[number]):
                    self.db.execute(statement)
                crash_point("store.in_migration")
                self.db.execute(f"PRAGMA user_version={number + 1}")
                self.db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        row_digests.keep(self.db.conn)

    def close(self) -> None:
        """Close; where another host holds the run by now, leave the connection to the end of the process.

        Closing it would write the log's pages into a store that is not ours any more.
        """
        try:
            self.guard()
        except LonghaulError:
            _ABANDONED.append(self.db.conn)
            atexit.register(os._exit, int(ExitCode.LOCKED))  # the interpreter would close it at its end
            return
        with suppress(sqlite3.Error):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.db.conn.close()

    def _begin(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    @contextmanager
    def transaction(self, *, durable_commit: bool = True) -> Iterator[None]:
        """BEGIN IMMEDIATE ... COMMIT. With durable_commit=False a power cut may lose the newest rows, but no others.

        Waits while another process holds a lock. Raises LonghaulError: LOCKED if it holds on; STORE, DISK, PERMISSION.
        """
        self.guard()
        try:
            if durable_commit is not self._is_durable:
                self.db.execute(f"PRAGMA synchronous={'FULL' if durable_commit else 'NORMAL'}")
                self._is_durable = durable_commit
            self._patiently(self._begin)
        except sqlite3.DatabaseError as error:
            raise store_error(self.run, error) from error
        try:
            yield
            crash_point("store.before_commit")
            self.db.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
                raise store_error(self.run, error) from error
            raise

    def check(self, *, pages: bool = True) -> None:
        """Raises LonghaulError(STORE) unless rows are as their digests say. pages: SQLite's quick_check, too."""
        try:
            said = row_digests.altered(self.db.conn)
            if pages and not said:
                verdict = str(self.db.execute("PRAGMA quick_check(1)").fetchone()[0])
                said = "" if verdict == "ok" else verdict
        except sqlite3.DatabaseError as error:
            raise store_error(self.run, error) from error
        if said:
            raise store_error(self.run, sqlite3.DatabaseError(said))

    def backup(self, name: str) -> Path:
        """Write a consistent, durable copy to backups/. Keeps the last BACKUPS_KEPT numbered copies. Those of later
        cycles go: a fall-back has undone them."""
        durable.make_dir(self.run.backups)
        target, temporary = self.run.backups / name, self.run.backups / f".{name}.tmp"
        with durable.explained("cannot write the back-up", target):
            temporary.unlink(missing_ok=True)
            try:
                self.db.execute("VACUUM INTO ?", [str(temporary)])
            except sqlite3.DatabaseError as error:
                raise store_error(self.run, error) from error
            durable.fsync_file(temporary)
            temporary.replace(target)
            durable.fsync_dir(self.run.backups)
        numbered = sorted(self.run.backups.glob("cycle-*.db"))
        undone = [path for path in numbered if path.name > target.name] if target in numbered else []
        for old in [*undone, *[path for path in numbered if path not in undone][:-BACKUPS_KEPT]]:
            old.unlink(missing_ok=True)
        return target


def enter_wal(path: Path) -> None:
    """Put a copy of a store into the mode in which stores live, durably, before it gets a store's name.

    `VACUUM INTO` writes files without a log. Were the store itself converted, power could fail in between, and only a
    writer can roll that back.
    """
    with closing(sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)) as connection:
        set_pragma(connection, "journal_mode=WAL")
    durable.fsync_file(path)


def companions(path: Path) -> tuple[Path, ...]:
    """The files that SQLite keeps beside the store at `path`."""
    return tuple(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))


def remove_store(path: Path) -> None:
    """Remove a store that was never completed; the store itself goes last."""
    with durable.explained("cannot remove", path, kept="nothing was in it"):
        for part in (*companions(path), path):
            part.unlink(missing_ok=True)
