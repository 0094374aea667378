"""Rebuilds a lost or damaged store: from its newest back-up, and from what each attempt was told, did and left."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.commit import Ledger
from orchestrator.records import Record, profile_of, read_records
from orchestrator.recovery import recover_run
from orchestrator.run_directory import make_folders
from profiles.errors import ExitCode, LonghaulError
from profiles.load import from_json
from profiles.schema import Profile
from state import durable, recover
from state.checkpoint import Damaged, Manifest, read_manifest
from state.database import enter_wal, remove_store
from state.layout import RunDir
from state.opening import damaged, read_only, unsound
from state.reader import Reader, is_born
from state.states import RunState
from state.store import NewRun, Store
from state.tables import SCHEMA_VERSION

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
    """Quarantine the old store and rebuild a new one: from its newest back-up that is whole, and the run's files.

    Returns one line per action. Raises LonghaulError (STORE), before touching anything, if neither suffices.
    """
    records = read_records(run_dir)
    left = [*run_dir.checkpoints.glob("[!.]*"), *run_dir.backups.glob("*.db")]
    if not records and not left and not is_born(run_dir):
        return ["the run had not begun: nothing is lost, and the next start begins it"]
    backup = newest_backup(run_dir, records)
    if backup is None:
        new, profile = newborn(run_dir, records)
        run_id = new.run_id
    else:
        new, (run_id, profile) = None, backup.holds
    check_checkpoints(run_dir, run_id)
    make_folders(run_dir)
    lines = [f"the old one is kept as {path}" for path in put_aside(run_dir)]
    if backup is not None:
        put_in_place(run_dir, backup.path)
        lines.append(f"began from the back-up {backup.path.name}")
    with closing(Store.open(run_dir, new)) as store, closing(Reader.open(run_dir)) as reader:
        lines += read_from_files(run_dir, store, reader, profile)
    return lines


def read_from_files(run_dir: RunDir, store: Store, reader: Reader, profile: Profile) -> list[str]:
    """Bring the store up to the run's files. Returns one line per action."""
    lines = recover_run(run_dir, store, reader, Ledger(run_dir, store, reader, profile.retention), time.time())
    store.set_run_state(RunState.FAILED, "its store was made again from its files", time.time())
    return lines


def finished(run_dir: RunDir) -> list[str]:
    """Finish a rebuild that ended after the back-up was in place: whole, but older than the run's checkpoints.

    Returns one line per action; none for a store that knows them all.
    """
    with closing(Store.open(run_dir)) as store, closing(Reader.open(run_dir)) as reader:
        if not recover.strangers(run_dir, reader.history().run_id, reader.checkpoints()):
            return []
        return read_from_files(run_dir, store, reader, from_json(reader.profile_json()))


@dataclass(frozen=True)
class Backup:
    """A back-up of the store that is whole. holds: the run's id and its profile."""

    path: Path
    holds: tuple[str, Profile]


def newest_backup(run_dir: RunDir, records: Sequence[Record]) -> Backup | None:
    """The newest back-up that is whole and of this run, and from which files lead to every checkpoint that is there."""
    specs = {record.spec.token: record.spec.run_id for record in records}
    made_by = [(manifest.run_id, manifest.token) for manifest in manifests(run_dir)]
    for path in sorted(run_dir.backups.glob("cycle-*.db"), reverse=True):
        if unsound(path):
            continue
        with closing(read_only(path)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            run_id, text, sha256 = db.execute("SELECT run_id, profile, profile_sha256 FROM runs").fetchone()
            known = {token for (token,) in db.execute("SELECT token FROM attempts")} | set(specs)
        is_ours = not specs or run_id in specs.values()
        leads_on = {token for of, token in made_by if of == run_id} <= known
        is_whole = hashlib.sha256(text.encode()).hexdigest() == sha256
        if is_ours and leads_on and is_whole and version <= SCHEMA_VERSION:
            return Backup(path, (run_id, from_json(text)))
    return None


def manifests(run_dir: RunDir) -> Iterator[Manifest]:
    """Those of all checkpoints that can be read."""
    for path in run_dir.checkpoints.glob("[!.]*"):
        with suppress(Damaged, OSError):
            yield read_manifest(path)


def put_in_place(run_dir: RunDir, backup: Path) -> None:
    """Make a copy of a back-up the store: complete under another name first, as a new store is."""
    with durable.explained("cannot restore the back-up", run_dir.unborn_store, KEPT):
        remove_store(run_dir.unborn_store)
        shutil.copyfile(backup, run_dir.unborn_store)
        enter_wal(run_dir.unborn_store)
        run_dir.unborn_store.rename(run_dir.store)
        durable.fsync_dir(run_dir.root)


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
