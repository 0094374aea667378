"""Rebuilds a lost or damaged store from the run's files: what each attempt was told, did and left."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from orchestrator.commit import Ledger
from orchestrator.records import Record, profile_of, read_records
from orchestrator.recovery import recover_run
from orchestrator.run_directory import make_folders
from profiles.errors import ExitCode, LonghaulError
from profiles.load import from_json
from profiles.schema import Profile
from state import durable, recover
from state.layout import RunDir
from state.opening import damaged
from state.reader import Reader, is_born
from state.states import RunState
from state.store import NewRun, Store

KEPT = "all files, unchanged"


def problem_of(run_dir: RunDir) -> str:
    """Describe the damage to the store; empty: it is intact. Raises LonghaulError for any problem but damage."""
    if not is_born(run_dir):
        return f"run '{run_dir.name}' has no store"
    try:
        with closing(Store.open(run_dir)) as store, closing(Reader.open(run_dir)) as reader:
            store.check()
            if store.db.execute("PRAGMA foreign_key_check").fetchone():
                raise damaged(run_dir, "rows name others that are not there")
            reader.history()
            reader.profile_json()
    except LonghaulError as error:
        if error.exit_code != ExitCode.STORE:
            raise
        return error.what
    return ""


def made_again(run_dir: RunDir) -> list[str]:
    """Quarantine the old store and rebuild a new one from the run's files. Returns one line per action.

    Raises LonghaulError (STORE), before touching anything, if the files do not suffice.
    """
    records = read_records(run_dir)
    new, profile = newborn(run_dir, records)
    check_checkpoints(run_dir, new.run_id)
    make_folders(run_dir)
    lines = [f"the old one is kept as {path}" for path in put_aside(run_dir)]
    with closing(Store.open(run_dir, new)) as store, closing(Reader.open(run_dir)) as reader:
        ledger = Ledger(run_dir, store, reader, profile.retention)
        lines += recover_run(run_dir, store, reader, ledger, time.time())
        store.set_run_state(RunState.FAILED, "its store was made again from its files", time.time())
    return lines


def newborn(run_dir: RunDir, records: Sequence[Record]) -> tuple[NewRun, Profile]:
    """The new run's facts and profile, from the newest attempt whose profile is intact.

    Raises LonghaulError (STORE) if there is none.
    """
    for record in reversed(records):
        if (found := profile_of(record)) is not None:
            text, sha256 = found
            profile = from_json(text)
            began = min(one.directory.spec.stat().st_mtime for one in records)
            new = NewRun(record.spec.run_id, run_dir.name, text, sha256, profile.run.seed, "recovered", began)
            return new, profile
    raise LonghaulError(
        f"no attempt in {run_dir.cycles} has a whole spec.json, so nothing says what profile the run had",
        kept=KEPT,
        next_command=f"ls {run_dir.backups}   (copy the newest one to {run_dir.store}, and remove any -wal beside it)",
        exit_code=ExitCode.STORE,
    )


def check_checkpoints(run_dir: RunDir, run_id: str) -> None:
    """Raise LonghaulError (STORE) if there are checkpoints but none is usable, so that no run restarts from scratch."""
    found = [recover.look(path) for path in sorted(run_dir.checkpoints.glob("[!.]*"))]
    if found and not any(not item.problem and item.run_id == run_id for item in found):
        reasons = "; ".join(f"{item.name}: {item.problem or 'of another run'}" for item in found[-5:])
        raise LonghaulError(
            f"none of the {len(found)} checkpoints of this run can be used ({reasons})",
            kept=KEPT,
            next_command=f"ls -l {run_dir.checkpoints} {run_dir.quarantine}   (restore one from your own backup)",
            exit_code=ExitCode.STORE,
        )


def put_aside(run_dir: RunDir) -> list[Path]:
    """Move the store and its companion files into quarantine/."""
    parts = [path for path in (*run_dir.store_companions, run_dir.store) if os.path.lexists(path)]
    number = 1
    while any(os.path.lexists(run_dir.quarantine / f"{path.name}.{number}") for path in parts):
        number += 1
    moved = []
    for path in parts:  # move the store last, so that a retry after a failure moves the rest
        target = run_dir.quarantine / f"{path.name}.{number}"
        with durable.explained("cannot move", path, KEPT):
            path.rename(target)
        moved.append(target)
    durable.fsync_dir(run_dir.quarantine)
    durable.fsync_dir(run_dir.root)
    return moved
