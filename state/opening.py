"""Opens SQLite files, sets pragmas and explains SQLite's errors. Imports little, because `status` must start fast."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.layout import RunDir

BUSY_S = 5.0
"""How long SQLite itself waits for a lock."""
LONGEST_PATH = 504
"""Limit of a store's absolute path in bytes, links resolved: SQLite allows 512 and needs eight for `-journal`."""
LONGEST_ROOT = LONGEST_PATH - len("/backups/.state.db.v100.bak.tmp")
"""Limit of a run directory's path in bytes, so that every store in it can be opened."""
SMALLEST_ROOM = 1 << 20
"""With less free space than this, a failure to open or write is blamed on a full disk."""


def read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection. The path is quoted, so it may contain `#`, `?` and `%`. Raises sqlite3.Error."""
    way = "immutable=1" if _never_changes(path) else "mode=ro"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{way}", uri=True, timeout=BUSY_S)


def _never_changes(path: Path) -> bool:
    """Whether the store is whole and on a file system that is mounted read-only, where SQLite cannot make the files
    that it reads a store through."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY) and not path.with_name(f"{path.name}-wal").exists()
    except OSError:
        return False  # what is wrong with the path, SQLite says


def set_pragma(connection: sqlite3.Connection, pragma: str) -> None:
    """Set `name=value` and read the answer: unread, a change to WAL that SQLite could not commit is not raised."""
    connection.execute(f"PRAGMA {pragma}").fetchall()


def unsound(path: Path) -> str:
    """What is wrong with a store's pages, references and digests of rows; empty: nothing."""
    from state.row_digests import altered  # hashlib is not imported by every command

    try:
        with closing(read_only(path)) as db:
            verdict = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if verdict != "ok":
                return str(verdict)
            lost = db.execute("PRAGMA foreign_key_check").fetchone()
            return f"a row of {lost[0]} names another that is not there" if lost else altered(db)
    except sqlite3.Error as error:
        return str(error)


def is_busy(error: Exception) -> bool:
    """Whether another process holds a lock that we need. (pure)"""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: Exception) -> int:
    """SQLite's primary error code; 0 if the error has none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def store_error(run: RunDir, error: Exception) -> LonghaulError:
    """Explain a failure of SQLite: lock, disk, permission or damage."""
    code, text = _code(error), str(error)
    if is_busy(error):
        return LonghaulError(
            f"another process holds a lock on the store of run '{run.name}': {text}",
            kept="everything that was committed",
            next_command=f"fuser -v {run.store}   (end the process that holds it), then: python -m orchestrator run",
            exit_code=ExitCode.LOCKED,
        )
    cannot_open = code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
    if cannot_open and len(os.fsencode(run.store.resolve())) > LONGEST_PATH:
        return too_long(run)
    if cannot_open and not _may_write(run):
        return LonghaulError(
            f"the store of run '{run.name}' cannot be opened: {text}",
            kept="everything that was committed",
            next_command=f"ls -ld {run.root} {run.store}   (they must be yours and writable)",
            exit_code=ExitCode.PERMISSION,
        )
    if cannot_open or code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        why = "is full" if code == sqlite3.SQLITE_FULL or _is_full(run) else "is full or failing"
        return LonghaulError(
            f"the disk of run '{run.name}' {why}: {text}",
            kept="the head checkpoint and everything that was committed",
            next_command=f"df -h {run.root}   (free some space), then: python -m orchestrator run --run {run.name}",
            exit_code=ExitCode.DISK,
        )
    return damaged(run, text)


def too_long(run: RunDir) -> LonghaulError:
    """The run directory's path exceeds SQLite's limit. A symbolic link does not help: SQLite resolves it."""
    length = len(os.fsencode(run.root.resolve()))
    return LonghaulError(
        f"the path of the directory of run '{run.name}' has {length} bytes; SQLite allows {LONGEST_ROOT}",
        kept="nothing was changed",
        next_command="the same command with a shorter --runs DIR",
        exit_code=ExitCode.INPUT,
    )


def damaged(run: RunDir, text: str) -> LonghaulError:
    """The store is damaged; `recover` can rebuild it from the files beside it."""
    return LonghaulError(
        f"the store of run '{run.name}' is damaged: {text}",
        kept=f"checkpoints in {run.checkpoints}, and what each attempt wrote in {run.cycles}",
        next_command=f"python -m orchestrator recover --run {run.name}   (rebuilds the store from them)",
        exit_code=ExitCode.STORE,
    )


def _may_write(run: RunDir) -> bool:
    files = [path for path in (run.store, *run.store_companions) if path.exists()]
    return os.access(run.root, os.W_OK | os.X_OK) and all(os.access(path, os.R_OK | os.W_OK) for path in files)


def _is_full(run: RunDir) -> bool:
    try:
        return durable.free_bytes(run.root) < SMALLEST_ROOM
    except (OSError, LonghaulError):
        return False


def unexpected(run: RunDir, error: OSError | sqlite3.Error) -> LonghaulError:
    """Explain a system error that no other code caught: disk, permission, or INTERNAL."""
    if isinstance(error, sqlite3.Error):
        return store_error(run, error)
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else run.root
    kept = "the head and everything that was committed"
    return durable.os_failure(error, "cannot use", path, kept) or LonghaulError(
        f"the system refused {path}: {error.strerror or error} ({errno.errorcode.get(error.errno or 0, '?')})",
        kept=kept,
        next_command=f"python -m orchestrator run --run {run.name}",
        exit_code=ExitCode.INTERNAL,
    )
